// Matrix products of flash attention and of gemm(), on operands packed into panels once per tile.
//
// A matrix is stored in panels of w columns each: element (r, c) of a matrix of `rows` rows is at (c / w)·rows·w + r·w + c % w.
// So a product reads consecutive memory, whatever the strides of the original view (rows 4 KB apart, as with 16 heads of 64 in
// f32, would share a few sets of every cache). A panel is as wide as a register tile: two vectors where its columns are of the
// head dim, three where they are queries or keys.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstddef>

namespace tsprun::detail::kernels::flash {

/// Returns the vector size, in bytes, of the level that the kernels run at (level.h).
std::size_t vector_bytes();

/// Panel widths in elements of T, at the level that the kernels run at.
template <class T>
struct PanelWidths {
  std::size_t lanes = vector_bytes() / sizeof(T);
  std::size_t head = 2 * lanes;  ///< of a panel whose columns are of the head dim
  std::size_t tile = 3 * lanes;  ///< of a panel whose columns are queries or keys
};
/// Largest `tile` width, in elements, at any level; workspaces are sized with it.
template <class T>
inline constexpr std::size_t kMostTileWidth = 3 * 64 / sizeof(T);
/// Returns `head_dim` rounded up to whole panels of the widest level; workspaces are sized with it.
template <class T>
constexpr std::size_t most_padded(std::size_t head_dim) {
  return round_up(head_dim, 2 * 64 / sizeof(T));
}

/// Operands of one product C = A·B, or C += A·B if `add` is true, where B and C are one panel each; the struct owns nothing.
/// Element (i, j) of C is a chain of multiply-adds over ascending k that begins with C's old value (with `add`) or with 0. So its
/// bits depend on the values alone, not on tiles or threads.
template <class T>
struct PanelProduct {
  std::size_t rows = 0;
  std::size_t columns = 0;  ///< of B and C, at most three vectors; rows of B are read in whole vectors
  std::size_t depth = 0;
  const T* a = nullptr;    ///< [rows, depth], or [depth, rows] with `a_transposed`
  std::size_t a_step = 0;  ///< elements from one stored row to the next; likewise b_step and c_step
  bool a_transposed = false;
  std::size_t a_columns = 0;  ///< width of A's panels, if A [rows, depth] is stored in several; else 0
  std::size_t a_panel = 0;    ///< elements from one of A's panels to the next
  const T* b = nullptr;       ///< [depth, columns]
  std::size_t b_step = 0;
  T* c = nullptr;  ///< [rows, columns]
  std::size_t c_step = 0;
  bool add = false;
};
/// Computes the product on the calling thread.
void multiply(const PanelProduct<float>& product);
void multiply(const PanelProduct<double>& product);

/// Packs the matrix `view` into panels of `width` columns, a multiple of the vector's lanes. Missing columns of the last panel
/// become zeros. bf16 is widened to f32.
void pack_panels(float* to, std::size_t width, const ConstTensor& view);
void pack_panels(double* to, std::size_t width, const ConstTensor& view);
/// Packs the transpose of `view` in the same way.
void pack_transposed(float* to, std::size_t width, const ConstTensor& view);
void pack_transposed(double* to, std::size_t width, const ConstTensor& view);

/// Returns whether all `count` values are finite.
bool all_finite(const float* values, std::size_t count);
bool all_finite(const double* values, std::size_t count);

}  // namespace tsprun::detail::kernels::flash
