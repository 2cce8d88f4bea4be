// Products of bf16 matrices in bf16 units: AVX512_BF16's vdpbf16ps multiplies two pairs and adds both products to a sum in f32.
// At the level amx_bf16, AMX computes them from the same operands (amx_product.h).
//
// The two summands of a pair lie side by side, so that an operand whose dense dim isn't that of the sum must be packed. B is
// packed into panels of w columns, kPairColumns or kWideColumns: pair p of column c, the elements (2p, c) and (2p + 1, c), is at
// pair (c / w)·pairs·w + p·w + c % w. A is read where it lies if its rows are dense along the sum; otherwise it is packed
// ("turned") in the same way, in panels of kPairRows rows.
//
// The instruction adds the product of the odd element, then that of the even one, each with one rounding, and takes denormals as
// zeros. So an element of C is a chain over pairs in ascending order, whose bits depend on the values alone. AMX's order is
// another (tile_product-inl.h).
#pragma once

#include "core/tensor/tensor.h"

#include <cstddef>

namespace tsprun::detail::kernels::pairs {

/// Columns of a panel of B, and rows of a panel of a turned A. Wide panels serve matrices of 64 or 128 columns, the usual head
/// dims, which panels of 48 would leave a rest of.
inline constexpr std::size_t kPairColumns = 48;
inline constexpr std::size_t kWideColumns = 64;
inline constexpr std::size_t kPairRows = 16;
/// Summands of a tile of AMX, which are added up as a group.
inline constexpr std::size_t kTileDepth = 32;

/// Returns whether this machine has the instructions. Call the functions below only then.
bool offered();
/// Returns whether products are computed by AMX, at the level that the kernels run at (level.h).
bool in_tiles();

/// Returns the elements of a matrix of `lines` columns (of B) or rows (of a turned A) and `depth` summands, packed into panels of
/// `width`.
constexpr std::size_t packed_elements(std::size_t lines, std::size_t depth, std::size_t width) {
  return (lines + width - 1) / width * width * ((depth + 1) / 2 * 2);
}

/// Operands of one product C = A·B, or C += A·B if `add` is true, where B and C are one panel each; the struct owns nothing.
struct PairProduct {
  std::size_t rows = 0;
  std::size_t columns = 0;  ///< at most b_width
  std::size_t depth = 0;    ///< summands; if odd, the last pair's second elements aren't read from A and don't count
  std::size_t skip = 0;     ///< so many of the first summands, not all, don't count either
  const bf16* a = nullptr;  ///< [rows, depth], or packed
  std::size_t a_step = 0;   ///< elements from one row of A to the next, unless it is turned; c_step likewise
  bool a_turned = false;
  const bf16* b = nullptr;
  std::size_t b_width = kPairColumns;  ///< columns of the panel: kPairColumns or kWideColumns
  float* c = nullptr;                  ///< [rows, columns]
  std::size_t c_step = 0;
  bool add = false;
};
/// Computes the product on the calling thread.
void multiply(const PairProduct& product);

/// Packs `view` [depth, lines], dense along either dim, into panels of `width` lines: kPairColumns, kWideColumns or kPairRows.
/// Missing lines of the last panel, and the missing half of an odd depth's last pair, become zeros.
void pack(bf16* to, std::size_t width, const ConstTensor& view);
/// Copies `view` [rows, depth], of which each column's elements are adjacent, to rows whose elements are, `step` apart; `step` is
/// a multiple of kTileDepth that isn't below the depth. What follows the depth, up to the next multiple, becomes zeros.
void turn_to_rows(bf16* to, std::size_t step, const ConstTensor& view);

}  // namespace tsprun::detail::kernels::pairs
