// OpenBLAS, loaded when a kernel first needs it: by then the level is known (OpenBLAS chooses its kernels while it loads), and
// processes that never multiply matrices don't pay for its start. It runs on the calling thread alone.
#pragma once

#include "core/kernels/level.h"

#include <cstddef>
#include <string>

namespace tsprun::kernels::blas {

/// A [m, k], B [k, n], C [m, n], row-major; `*_step` is the distance between stored rows. A transposed operand is stored [k, m]
/// or [n, k]. C = A·B, or C += A·B with `add`.
template <class T>
struct Product {
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

/// With k = 0 writes zeros (or, with `add`, nothing). Sizes and steps must fit an int (std::invalid_argument). Throws
/// Error(refused) if the library can't be loaded, with the loader's reason.
void multiply(const Product<float>& product);
void multiply(const Product<double>& product);

/// The kernels that OpenBLAS chose: "SkylakeX", "Haswell". Loads it.
std::string core_name();
/// OpenBLAS' version, "0.3.21". Loads it.
std::string version();
/// True once the library is loaded, for a level that can then no longer change.
bool loaded();

}  // namespace tsprun::kernels::blas
