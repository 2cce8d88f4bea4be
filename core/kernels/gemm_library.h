// The library that multiplies f32 and f64 matrices in gemm(): tsprun's own kernels, or OpenBLAS.
//
// The choice belongs to the process, like the level (level.h). OpenBLAS is loaded (dlopen) only where it has been chosen and is
// needed, by the process that multiplies: a child of fork(2) would have a damaged copy of it. It computes on the thread that
// calls it, with the kernels that it has for the level, so that machines of one level have one kind of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tsprun::detail {
class Environment;
}

namespace tsprun::detail::kernels {

/// The libraries. What has a bf16 operand or result, and products of up to four rows (thin_product.h), tsprun's kernels compute
/// in either case.
enum class GemmLibrary : std::uint8_t { tsprun, openblas };

/// The choice of "auto": tsprun's kernels where they are tuned, which is on x86-64, OpenBLAS elsewhere, if it can be had
/// (automatic_gemm_library()).
#ifdef __x86_64__
inline constexpr GemmLibrary kUsualGemmLibrary = GemmLibrary::tsprun;
#else
inline constexpr GemmLibrary kUsualGemmLibrary = GemmLibrary::openblas;
#endif

std::string_view name(GemmLibrary library);  ///< returns "tsprun" or "openblas"
/// Returns the library of that name, or of "auto"; nothing if there is none.
std::optional<GemmLibrary> gemm_library_from_name(std::string_view text);
/// Returns the library of TSP_GEMM, or of "auto" if it isn't set. Throws Error(refused) if it names none.
GemmLibrary gemm_library_from(const Environment& environment);

/// Returns what "auto" stands for on this machine: `usual`, or tsprun where that is OpenBLAS and `try_openblas`, which shall load
/// it, throws Error. The log then has a warning with that error's text. Where tsprun is usual, nothing is tried.
GemmLibrary automatic_gemm_library(const std::function<void()>& try_openblas, GemmLibrary usual = kUsualGemmLibrary);

/// Chooses the library of this process, and loads nothing. No product may run at the same time.
void set_gemm_library(GemmLibrary library);
/// Returns the library given to set_gemm_library(), or else that of this process's variables, with the same errors. Where these
/// leave the choice to "auto" and OpenBLAS is usual, the first call loads it, or warns that it can't.
GemmLibrary gemm_library();

/// Loads the chosen library if it isn't yet, so that the first product needn't. The level must be known (set_level()). Returns
/// which it is: "tsprun", or "openblas 0.3.21 (SkylakeX)" with OpenBLAS' version and the core type of its kernels. Throws
/// Error(refused), naming what to install or choose, if OpenBLAS can't be loaded, or isn't built for POSIX threads.
std::string load_gemm_library();

/// A product of OpenBLAS', C = A·B, or C += A·B if `add` is true; A [m, k], B [k, n] and C [m, n], none of them empty. `*_step`
/// is the distance between stored rows, in elements. An operand that is marked as transposed is stored as [k, m] (A) or [n, k]
/// (B). The struct owns nothing.
template <class T>
struct OpenBlasProduct {
  std::size_t m = 0;
  std::size_t n = 0;
  std::size_t k = 0;
  const T* a = nullptr;
  std::size_t a_step = 0;
  bool a_transposed = false;
  const T* b = nullptr;
  std::size_t b_step = 0;
  bool b_transposed = false;
  T* c = nullptr;
  std::size_t c_step = 0;
  bool add = false;
};
/// Computes the product on the calling thread, by OpenBLAS whichever library is chosen. Any number of threads may call it at the
/// same time; those beyond what OpenBLAS was built for (64 on Debian 12) wait for others. Throws what load_gemm_library() throws,
/// and std::invalid_argument if a size or step doesn't fit an int.
void multiply(const OpenBlasProduct<float>& product);
void multiply(const OpenBlasProduct<double>& product);

}  // namespace tsprun::detail::kernels
