// Operands of one stretch of a tile of gemm(): parts of A and B whose products are added to a tile of C. WideOperands multiplies
// in the type of sums, T, into which bf16 is widened; PairOperands multiplies in bf16 units, for which f32 is rounded to bf16;
// OpenBlasOperands lets OpenBLAS multiply. All have the same functions. They live in workspace, and use one thread's part of it
// each.
//
// An element of C is a chain of multiply-adds over ascending k, in the first two classes; by AMX, over groups of 32 k, of which a
// stretch holds a whole number. So its bits depend neither on tiles nor stretches. OpenBLAS promises nothing of the kind.
#pragma once

#include "core/kernels/check.h"
#include "core/kernels/elementwise.h"
#include "core/kernels/flash_pairs.h"
#include "core/kernels/flash_panels.h"
#include "core/kernels/gemm_library.h"
#include "core/kernels/pair_panels.h"
#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <algorithm>
#include <cstddef>

namespace tsprun::detail::kernels {

/// Sides of a tile of C, rows of it for which A is packed at once, and summands of a stretch; or the most of each.
struct GemmTile {
  std::size_t rows;
  std::size_t columns;
  std::size_t block;
  std::size_t depth;
};
/// Tiles whose sums have 1 MiB in f32, and a stretch of A and of B 0.5 MiB each.
inline constexpr GemmTile kSmallTiles{.rows = 512, .columns = 528, .block = 512, .depth = 256};

/// Returns `view` itself if it is of type T, otherwise a copy of that type at `to`, dense along the same dim.
template <class T>
ConstTensor as_type(const ConstTensor& view, T* to) {
  if (view.dtype() == dtype_of<T>()) return view;
  const bool turned = !dense_rows(view);
  const ConstTensor stored = turned ? view.transposed(0, 1) : view;
  const Tensor copy(reinterpret_cast<std::byte*>(to), dtype_of<T>(), {stored.size(0), stored.size(1)});
  convert({}, copy, stored);
  return turned ? copy.transposed(0, 1) : copy;
}

/// Operands in f32 or f64.
template <class T>
class WideOperands {
 public:
  using Sum = T;
  /// A tile's columns are a multiple of it: the width of a panel of B, or of several.
  static constexpr std::size_t kGrain = flash::kMostTileWidth<T>;
  /// Any tiles give the same bits.
  static constexpr bool kAnyTiles = true;
  /// C is read and written once for each stretch, so stretches are long. A block of A has at most 0.25 MiB in f32, which lies in
  /// the second cache, and one of B 1 MiB, which is packed once for many rows.
  static constexpr GemmTile kMost{.rows = 2048, .columns = 528, .block = 128, .depth = 512};

  /// Takes workspace for tiles of these views, which may be the whole matrices.
  WideOperands(Carver& carver, const GemmTile& tile, const ConstTensor& a, const ConstTensor& /* b */)
      : a_(!dense_rows(a)               ? carver.take<T>(round_up(tile.block, kGrain) * tile.depth)
           : a.dtype() != dtype_of<T>() ? carver.take<T>(tile.block * tile.depth)
                                        : nullptr),
        b_(carver.take<T>(round_up(tile.columns, kGrain) * tile.depth)) {}

  /// Takes the part B [depth, columns].
  void take_b(const ConstTensor& b) {
    depth_ = b.size(0);
    columns_ = b.size(1);
    if (dense_rows(b)) {
      flash::pack_panels(b_, width_, b);
    } else {
      flash::pack_transposed(b_, width_, b.transposed(0, 1));
    }
  }

  /// Takes the part A [rows, depth], which must stay where it is.
  void take_a(const ConstTensor& a) {
    rows_ = a.size(0);
    turned_ = !dense_rows(a);
    if (turned_) {
      flash::pack_panels(a_, width_, a.transposed(0, 1));
      return;
    }
    const ConstTensor rows = as_type<T>(a, a_);
    in_place_ = rows.template as<T>();
    step_ = rows.stride(0);
  }

  /// Computes C = A·B, or adds it to C if `add` is true, for the whole parts. C [rows, columns].
  void multiply(T* c, std::size_t c_step, bool add) const {
    for (std::size_t column = 0; column < columns_; column += width_) {
      flash::PanelProduct<T> product{.rows = rows_,
                                     .columns = std::min(width_, columns_ - column),
                                     .depth = depth_,
                                     .a = in_place_,
                                     .a_step = step_,
                                     .b = b_ + column * depth_,
                                     .b_step = width_,
                                     .c = c + column,
                                     .c_step = c_step,
                                     .add = add};
      if (!turned_) {
        flash::multiply(product);
        continue;
      }
      product.a_transposed = true;
      product.a_step = width_;
      for (std::size_t row = 0; row < rows_; row += width_) {
        product.rows = std::min(width_, rows_ - row);
        product.a = a_ + row * depth_;
        product.c = c + row * c_step + column;
        flash::multiply(product);
      }
    }
  }

 private:
  std::size_t width_ = flash::PanelWidths<T>().tile;
  T* a_;  // A's panels if its rows aren't dense, or its widened rows
  T* b_;  // panels
  std::size_t rows_ = 0;
  std::size_t depth_ = 0;
  std::size_t columns_ = 0;
  bool turned_ = false;
  const T* in_place_ = nullptr;
  std::size_t step_ = 0;
};

/// Operands in bf16 for bf16 units; sums in f32.
class PairOperands {
 public:
  using Sum = float;
  static constexpr std::size_t kGrain = pairs::kPairColumns;
  static constexpr bool kAnyTiles = true;
  static constexpr GemmTile kMost = kSmallTiles;
  static_assert(kMost.depth % pairs::kTileDepth == 0, "the groups of summands that AMX adds up must not depend on stretches");

  PairOperands(Carver& carver, const GemmTile& tile, const ConstTensor& a, const ConstTensor& b)
      : a_(carver.take<bf16>(round_up(tile.rows, pairs::kPairRows) * step_of(tile.depth))),
        b_(carver.take<bf16>(pairs::packed_elements(tile.columns, tile.depth, pairs::kPairColumns))),
        rounded_(carver.take<bf16>(a.dtype() == DType::f32   ? tile.rows * tile.depth
                                   : b.dtype() == DType::f32 ? tile.columns * tile.depth
                                                             : 0)) {}

  void take_b(const ConstTensor& b) {
    depth_ = b.size(0);
    columns_ = b.size(1);
    pairs::pack(b_, pairs::kPairColumns, as_type<bf16>(b, rounded_));
  }

  void take_a(const ConstTensor& a) {
    rows_ = a.size(0);
    const ConstTensor rows = as_type<bf16>(a, rounded_);
    turned_ = !dense_rows(a) && !pairs::in_tiles();
    from_ = a_;
    if (turned_) {
      pairs::pack(a_, pairs::kPairRows, rows.transposed(0, 1));
    } else if (!dense_rows(a)) {
      step_ = step_of(depth_);
      pairs::turn_to_rows(a_, step_, rows);
    } else if (pairs::in_tiles() && rows.as<bf16>() != rounded_) {  // rows a page apart would share a few sets of the first cache
      step_ = depth_;
      flash::copy_rows(a_, rows);
    } else {
      step_ = rows.stride(0);
      from_ = rows.as<bf16>();
    }
  }

  void multiply(float* c, std::size_t c_step, bool add) const {
    for (std::size_t column = 0; column < columns_; column += pairs::kPairColumns) {
      pairs::multiply({.rows = rows_,
                       .columns = std::min(pairs::kPairColumns, columns_ - column),
                       .depth = depth_,
                       .a = from_,
                       .a_step = step_,
                       .a_turned = turned_,
                       .b = b_ + pairs::packed_elements(column, depth_, pairs::kPairColumns),
                       .c = c + column,
                       .c_step = c_step,
                       .add = add});
    }
  }

 private:
  /// Elements from one row of a copy of A, for AMX, to the next.
  static constexpr std::size_t step_of(std::size_t depth) { return round_up(depth, pairs::kTileDepth); }

  bf16* a_;        // A if it isn't read in place: turned, or for AMX as rows
  bf16* b_;        // panels
  bf16* rounded_;  // the operand that is in f32
  std::size_t rows_ = 0;
  std::size_t depth_ = 0;
  std::size_t columns_ = 0;
  bool turned_ = false;
  const bf16* from_ = nullptr;  // A's first element, here or there
  std::size_t step_ = 0;
};

/// Operands in f32 or f64 that OpenBLAS multiplies where they are.
template <class T>
class OpenBlasOperands {
 public:
  using Sum = T;
  /// OpenBLAS' own register tiles divide it.
  static constexpr std::size_t kGrain = 64;
  /// Tiles must follow from the shapes alone.
  static constexpr bool kAnyTiles = false;
  static constexpr GemmTile kMost = kSmallTiles;

  /// Takes workspace that isn't used: it stands for OpenBLAS' buffers of this thread, into which OpenBLAS packs both operands, so
  /// that the heap's counts and budget hold for them.
  OpenBlasOperands(Carver& carver, const GemmTile& tile, const ConstTensor& /* a */, const ConstTensor& /* b */) {
    carver.take<T>((round_up(tile.rows, kGrain) + round_up(tile.columns, kGrain)) * tile.depth);
  }

  void take_b(const ConstTensor& b) {
    product_.k = b.size(0);
    product_.n = b.size(1);
    take(b, product_.b, product_.b_step, product_.b_transposed);
  }

  void take_a(const ConstTensor& a) {
    product_.m = a.size(0);
    take(a, product_.a, product_.a_step, product_.a_transposed);
  }

  void multiply(T* c, std::size_t c_step, bool add) {
    product_.c = c;
    product_.c_step = c_step;
    product_.add = add;
    kernels::multiply(product_);
  }

 private:
  static void take(const ConstTensor& view, const T*& data, std::size_t& step, bool& transposed) {
    transposed = !dense_rows(view);
    data = view.template as<T>();
    step = view.stride(transposed ? 1 : 0);
  }

  OpenBlasProduct<T> product_;
};

}  // namespace tsprun::detail::kernels
