// Tiling of gemm() for OpenBLAS, and widening of bf16 tiles.
#include "core/kernels/gemm.h"

#include "core/kernels/blas.h"
#include "core/kernels/check.h"
#include "core/kernels/elementwise.h"
#include "core/kernels/gemm_pairs.h"
#include "core/kernels/level.h"
#include "core/kernels/thin_product.h"

#include <algorithm>
#include <type_traits>

namespace tsprun::detail::kernels {

namespace {

/// A matrix as BLAS takes it: stored rows of dense elements, transposed or not.
struct Operand {
  ConstTensor stored;  // [rows, columns] in memory
  bool transposed;

  static Operand of(const ConstTensor& view) {
    if (dense_rows(view)) return {view, false};
    return {view.transposed(0, 1), true};
  }
  /// Returns rows [row, row + rows) and columns [column, column + columns) of the matrix, as stored.
  ConstTensor tile(std::size_t row, std::size_t rows, std::size_t column, std::size_t columns) const {
    if (transposed) return stored.slice(0, column, columns).slice(1, row, rows);
    return stored.slice(0, row, rows).slice(1, column, columns);
  }
};

/// Sizes of a tile.
struct Tiling {
  std::size_t rows;
  std::size_t columns;
  std::size_t depth;

  std::size_t area() const { return rows * columns; }
};

/// Largest number of multiply-adds of one BLAS call: 1.5 ms of f32 at 105 GFLOP/s.
constexpr std::size_t kTileProducts = 80'000'000;
/// Depths that no OpenBLAS cuts again for the cores that levels choose, so that tiles alone decide the order of sums. 0.3.21 cuts
/// K at 448 (f32) and 384 (f64) for SkylakeX, 320 and 256 for Haswell; later versions may take the host's where a core is forced.
constexpr std::size_t kDepthF32 = 320;
constexpr std::size_t kDepthF64 = 256;
constexpr std::size_t kTileSide = 512;
constexpr std::size_t kLongSide = 1536;
/// Least number of tiles of a large enough product, so that threads finish together.
constexpr std::size_t kTilesAtLeast = 8;
constexpr std::size_t kSmallestArea = 128 * 128;
/// Tile sizes are multiples of this, itself a multiple of the register tiles of all BLAS kernels.
constexpr std::size_t kGrain = 32;

/// Cuts `total` into equal pieces of at most about `limit`.
constexpr std::size_t even(std::size_t total, std::size_t limit) {
  if (total <= limit) return std::max<std::size_t>(total, 1);
  const std::size_t count = pieces(total, limit);
  return round_up(pieces(total, count), kGrain);
}

/// Returns the tile sizes for a product whose output isn't empty.
Tiling plan(std::size_t m, std::size_t n, std::size_t k, DType dtype) {
  const std::size_t products = dtype == DType::f64 ? kTileProducts / 2 : kTileProducts;
  Tiling tile{.rows = 0, .columns = 0, .depth = even(k, dtype == DType::f64 ? kDepthF64 : kDepthF32)};
  const std::size_t area = products / tile.depth;
  // If the output is narrow, the longer side of a tile makes up for the shorter one.
  tile.columns = even(n, std::clamp(area / (2 * m), kTileSide, kLongSide));
  tile.rows = even(m, std::clamp(area / (2 * n), kTileSide, kLongSide));
  while (tile.area() > area || (pieces(m, tile.rows) * pieces(n, tile.columns) < kTilesAtLeast && tile.area() > kSmallestArea)) {
    const bool by_rows = tile.rows >= tile.columns;
    std::size_t& side = by_rows ? tile.rows : tile.columns;
    const std::size_t shorter = even(by_rows ? m : n, side - side / 4);
    side = shorter < side ? shorter : side / 2;
  }
  return tile;
}

/// Widened tiles of one thread, in its workspace.
template <class T>
struct Scratch {
  T* a;
  T* b;
  T* c;

  Scratch(Carver& carver, const Tiling& tile, DType a_type, DType b_type, DType c_type)
      : a(a_type == DType::bf16 ? carver.take<T>(tile.rows * tile.depth) : nullptr),
        b(b_type == DType::bf16 ? carver.take<T>(tile.depth * tile.columns) : nullptr),
        c(c_type == DType::bf16 ? carver.take<T>(tile.area()) : nullptr) {}
};

/// Returns the view itself if `scratch` is null, otherwise a copy widened to T at `scratch`.
template <class T>
ConstTensor widened(const ConstTensor& view, T* scratch) {
  if (scratch == nullptr) return view;
  const Tensor wide(reinterpret_cast<std::byte*>(scratch), dtype_of<T>(), {view.size(0), view.size(1)});
  convert({}, wide, view);
  return wide;
}

template <class T>
void multiply_tile(const Tensor& c, const Operand& a, const Operand& b, const Tiling& tile, std::size_t row, std::size_t column,
                   Write write, const Scratch<T>& scratch, const Tick& tick) {
  const std::size_t k = a.transposed ? a.stored.size(0) : a.stored.size(1);
  const std::size_t rows = std::min(tile.rows, c.size(0) - row);
  const std::size_t columns = std::min(tile.columns, c.size(1) - column);
  const Tensor out = c.slice(0, row, rows).slice(1, column, columns);
  blas::Product<T> product;
  product.m = rows;
  product.n = columns;
  product.a_transposed = a.transposed;
  product.b_transposed = b.transposed;
  product.c = scratch.c != nullptr ? scratch.c : out.template as<T>();
  product.c_step = scratch.c != nullptr ? columns : out.stride(0);
  product.add = write == Write::add && scratch.c == nullptr;
  std::size_t at = 0;
  do {
    product.k = std::min(tile.depth, k - at);
    const ConstTensor a_tile = widened(a.tile(row, rows, at, product.k), scratch.a);
    const ConstTensor b_tile = widened(b.tile(at, product.k, column, columns), scratch.b);
    product.a = a_tile.template as<T>();
    product.a_step = a_tile.stride(0);
    product.b = b_tile.template as<T>();
    product.b_step = b_tile.stride(0);
    blas::multiply(product);
    product.add = true;
    at += product.k;
    if (at < k) tick();
  } while (at < k);
  if (scratch.c == nullptr) return;
  const ConstTensor sum(reinterpret_cast<const std::byte*>(scratch.c), dtype_of<T>(), {rows, columns});
  if (write == Write::add) {
    add({}, out, out, sum);
  } else {
    convert({}, out, sum);
  }
}

template <class T>
void run(const Compute& on, const Tensor& c, const ConstTensor& a_view, const ConstTensor& b_view, Write write) {
  const Operand a = Operand::of(a_view);
  const Operand b = Operand::of(b_view);
  const Tiling tile = plan(c.size(0), c.size(1), a_view.size(1), c.dtype());
  const std::size_t bytes = carved_bytes<Scratch<T>>(tile, a_view.dtype(), b_view.dtype(), c.dtype());
  check_workspace(on, "gemm", workspace_bytes(bytes, on.threads()));
  const std::size_t across = pieces(c.size(1), tile.columns);
  on.run(pieces(c.size(0), tile.rows) * across, [&](std::size_t task, std::size_t thread) {
    Carver carver = bytes == 0 ? Carver() : Carver(workspace_part(on.workspace, bytes, thread));
    const Scratch<T> scratch(carver, tile, a_view.dtype(), b_view.dtype(), c.dtype());
    multiply_tile(c, a, b, tile, task / across * tile.rows, task % across * tile.columns, write, scratch,
                  thread == 0 ? on.tick : Tick());
  });
}

void check(const ConstTensor& c, const ConstTensor& a, const ConstTensor& b) {
  require(c.dims() == 2 && dense_rows(c), "gemm", "C must be a matrix with dense rows", c);
  require(a.dims() == 2 && a.size(0) == c.size(0), "gemm", "A must be a matrix with C's rows", a);
  require(b.dims() == 2 && b.size(1) == c.size(1) && b.size(0) == a.size(1), "gemm",
          "B must be a matrix with A's columns as rows, C's columns", b);
  for (const ConstTensor* view : {&a, &b}) {
    require(dense_rows(*view) || dense_rows(view->transposed(0, 1)), "gemm", "an operand must be dense along one dim", *view);
    require(computes(view->dtype()) && (view->dtype() == DType::f64) == (c.dtype() == DType::f64), "gemm",
            "f64 goes with f64, bf16 and f32 with each other", *view);
  }
  require(computes(c.dtype()), "gemm", "C must be of a float type", c);
}

/// Returns whether the product could be computed in bf16 units.
bool in_pairs(const ConstTensor& a, const ConstTensor& b) {
  return (a.dtype() == DType::bf16 || b.dtype() == DType::bf16) && a.size(1) > 0;
}

}  // namespace

void gemm(const Compute& on, const Tensor& c, const ConstTensor& a, const ConstTensor& b, Write write) {
  check(c, a, b);
  if (c.empty()) return;
  if (thin(a, b)) return thin_product(on, c, a, b, write);
  if (in_pairs(a, b) && level() >= Level::avx512_bf16) {
    check_workspace(on, "gemm", pairs::workspace_of(c, a, b, on.threads()));
    pairs::gemm(on, c, a, b, write);
  } else if (c.dtype() == DType::f64) {
    run<double>(on, c, a, b, write);
  } else {
    run<float>(on, c, a, b, write);
  }
}

std::size_t gemm_workspace(const ConstTensor& c, const ConstTensor& a, const ConstTensor& b, std::size_t threads) {
  check(c, a, b);
  if (c.empty()) return 0;
  if (thin(a, b)) return thin_product_workspace(c, a, b);
  const Tiling tile = plan(c.size(0), c.size(1), a.size(1), c.dtype());
  const std::size_t widened = workspace_bytes(carved_bytes<Scratch<float>>(tile, a.dtype(), b.dtype(), c.dtype()), threads);
  // The same at every level: a forecast doesn't know that of the ranks.
  return in_pairs(a, b) ? std::max(widened, pairs::workspace_of(c, a, b, threads)) : widened;
}

}  // namespace tsprun::detail::kernels
