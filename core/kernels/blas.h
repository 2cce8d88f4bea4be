// OpenBLAS, loaded with dlopen when a kernel first needs it. OpenBLAS chooses its kernels while it loads, so the level (level.h)
// must be known by then; and processes that never multiply matrices don't pay for its start. It runs on the calling thread only.
#pragma once

#include "core/kernels/level.h"

#include <cstddef>
#include <string>

namespace tsprun::detail::kernels::blas {

/// Operands of one product C = A·B, or C += A·B if `add` is true. A [m, k], B [k, n] and C [m, n] are row-major; `*_step` is the
/// distance between stored rows, in elements. An operand marked as transposed is stored as [k, m] (A) or [n, k] (B). The struct
/// owns nothing.
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

/// Computes the product. If k is 0, it writes zeros to C (or does nothing if `add` is true). Throws std::invalid_argument if a
/// size or step doesn't fit an int, and Error(refused), with the loader's reason, if OpenBLAS can't be loaded.
void multiply(const Product<float>& product);
void multiply(const Product<double>& product);

/// Returns the name of the kernels that OpenBLAS chose, such as "SkylakeX" or "Haswell". Loads OpenBLAS.
std::string core_name();
/// Returns the version of OpenBLAS, such as "0.3.21". Loads OpenBLAS.
std::string version();
/// Returns version and core, "0.3.21 for SkylakeX". Loads OpenBLAS.
std::string description();
/// Returns whether OpenBLAS is loaded. From then on, set_level() can't choose another level.
bool loaded();

}  // namespace tsprun::detail::kernels::blas
