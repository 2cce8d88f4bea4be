// Flash attention's matrix products, which read their operands as they lie. OpenBLAS packs both operands of every call anew:
// where the inner dimension is a head dim of 64 that is an element for 64 multiplications.
//
// A matrix lies in panels of a few columns each: element (r, c) of a matrix of `rows` rows in panels of w columns is at
// (c / w)·rows·w + r·w + c % w. So what a product reads next lies next in memory, whatever the strides of the view it came from
// (rows 4 KB apart, as of 16 heads of 64 in f32, would share a few sets of every cache). Panels are as wide as a register tile:
// two vectors where columns are of the head dim, three where they are queries or keys.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstddef>

namespace tsprun::kernels::flash {

/// The vectors of the level that the kernels run at.
std::size_t vector_bytes();

/// Widths of panels, in elements.
template <class T>
struct PanelWidths {
  std::size_t lanes = vector_bytes() / sizeof(T);
  std::size_t head = 2 * lanes;  ///< where columns are of the head dim
  std::size_t tile = 3 * lanes;  ///< where they are queries or keys
};
/// What workspace must have room for, at any level.
template <class T>
inline constexpr std::size_t kMostTileWidth = 3 * 64 / sizeof(T);
template <class T>
constexpr std::size_t most_padded(std::size_t head_dim) {
  return round_up(head_dim, 2 * 64 / sizeof(T));
}

/// C [rows, columns] = A·B, or C += A·B, where B and C are one panel. Element (i, j) of C is one chain of multiply-adds over
/// ascending k, which begins with C's own value if it is added to, and with 0 if not: its bits depend on nothing but the values.
template <class T>
struct PanelProduct {
  std::size_t rows = 0;
  std::size_t vectors = 1;  ///< columns of B and C: 1, 2 or 3 vectors
  std::size_t depth = 0;
  const T* a = nullptr;    ///< [rows, depth], or [depth, rows] with `a_transposed`
  std::size_t a_step = 0;  ///< from one stored row to the next
  bool a_transposed = false;
  std::size_t a_columns = 0;  ///< of A's panels, if [rows, depth] lies in several
  std::size_t a_panel = 0;    ///< from one of A's panels to the next
  const T* b = nullptr;       ///< [depth, columns]
  std::size_t b_step = 0;
  T* c = nullptr;  ///< [rows, columns]
  std::size_t c_step = 0;
  bool add = false;
};
void multiply(const PanelProduct<float>& product);
void multiply(const PanelProduct<double>& product);

/// The matrix `view` in panels of `width` columns, a multiple of the lanes; missing columns of the last panel are zeros. bf16 is
/// widened.
void pack_panels(float* to, std::size_t width, const ConstTensor& view);
void pack_panels(double* to, std::size_t width, const ConstTensor& view);
/// The same of the matrix transposed.
void pack_transposed(float* to, std::size_t width, const ConstTensor& view);
void pack_transposed(double* to, std::size_t width, const ConstTensor& view);

/// Whether none of so many elements is infinite or NaN.
bool all_finite(const float* values, std::size_t count);
bool all_finite(const double* values, std::size_t count);

}  // namespace tsprun::kernels::flash
