// Tiling of gemm().
#include "core/kernels/gemm.h"

#include "core/kernels/gemm_library.h"
#include "core/kernels/gemm_operands.h"
#include "core/kernels/level.h"
#include "core/kernels/thin_product.h"

#include <algorithm>

namespace tsprun::detail::kernels {

namespace {

/// Tiles for each of several threads, so that they finish together, and the least side of such a tile.
constexpr std::size_t kTilesPerThread = 4;
constexpr std::size_t kLeastSide = 96;
/// Threads for which tiles are cut where they must not depend on the threads that there are.
constexpr std::size_t kUsualThreads = 2;
/// Tiles have a multiple of so many rows, which the widest register tiles divide: they have 8, 4 or 2 rows, packed pairs 16.
constexpr std::size_t kRowGrain = 16;

/// Cuts `total` into equal pieces of at most `limit`, rounded up to `grain`.
constexpr std::size_t even(std::size_t total, std::size_t limit, std::size_t grain) {
  return std::min(round_up(pieces(total, pieces(total, limit)), grain), round_up(total, grain));
}

/// Returns the tiles of a product whose output isn't empty.
template <class Operands>
GemmTile tile_of(const ConstTensor& c, const ConstTensor& a, std::size_t threads) {
  constexpr std::size_t grain = Operands::kGrain;
  if (!Operands::kAnyTiles) threads = kUsualThreads;
  const std::size_t m = c.size(0);
  const std::size_t n = c.size(1);
  // Sums that need workspace of their own are kept few.
  const GemmTile& most = c.dtype() == dtype_of<typename Operands::Sum>() ? Operands::kMost : kSmallTiles;
  GemmTile tile{.rows = even(m, most.rows, kRowGrain),
                .columns = even(n, most.columns, grain),
                .block = 0,
                .depth = std::min(most.depth, a.size(1))};
  const auto tiles = [&] { return pieces(m, tile.rows) * pieces(n, tile.columns); };
  while (threads > 1 && tiles() < kTilesPerThread * threads && std::max(tile.rows, tile.columns) >= 2 * kLeastSide) {
    if (tile.rows >= tile.columns) {
      tile.rows = even(m, tile.rows / 2, kRowGrain);
    } else {
      tile.columns = even(n, tile.columns / 2, grain);
    }
  }
  tile.block = even(tile.rows, most.block, kRowGrain);
  return tile;
}

/// One thread's workspace: operands of a stretch and, for a C in bf16, the tile's sums.
template <class Operands>
struct Scratch {
  using Sum = typename Operands::Sum;
  Operands operands;
  Sum* c;  // null: C is of the type of sums

  Scratch(Carver& carver, const GemmTile& tile, const ConstTensor& c_view, const ConstTensor& a, const ConstTensor& b)
      : operands(carver, tile, a, b),
        c(c_view.dtype() == dtype_of<Sum>() ? nullptr : carver.take<Sum>(tile.rows * tile.columns)) {}
};

/// Computes a tile `out` of C from A's rows and B's columns.
template <class Operands>
void multiply_tile(const GemmTile& tile, const Tensor& out, const ConstTensor& a, const ConstTensor& b, Write write,
                   Scratch<Operands>& scratch, const Tick& tick) {
  using Sum = typename Operands::Sum;
  Sum* c = scratch.c != nullptr ? scratch.c : out.as<Sum>();
  const std::size_t c_step = scratch.c != nullptr ? out.size(1) : out.stride(0);
  bool add_to_c = write == Write::add && scratch.c == nullptr;
  const std::size_t rows = a.size(0);
  const std::size_t depth = a.size(1);
  for (std::size_t at = 0; at < depth; at += tile.depth, add_to_c = true) {
    const std::size_t summands = std::min(tile.depth, depth - at);
    scratch.operands.take_b(b.slice(0, at, summands));
    for (std::size_t row = 0; row < rows; row += tile.block) {
      if (at + row > 0) tick();
      scratch.operands.take_a(a.slice(0, row, std::min(tile.block, rows - row)).slice(1, at, summands));
      scratch.operands.multiply(c + row * c_step, c_step, add_to_c);
    }
  }
  if (scratch.c == nullptr) return;
  const ConstTensor sum(reinterpret_cast<const std::byte*>(c), dtype_of<Sum>(), {out.size(0), out.size(1)});
  if (write == Write::add) {
    add({}, out, out, sum);
  } else {
    convert({}, out, sum);
  }
}

template <class Operands>
void run(const Compute& on, const Tensor& c, const ConstTensor& a, const ConstTensor& b, Write write) {
  const GemmTile tile = tile_of<Operands>(c, a, on.threads());
  const std::size_t bytes = carved_bytes<Scratch<Operands>>(tile, c, a, b);
  check_workspace(on, "gemm", workspace_bytes(bytes, on.threads()));
  const std::size_t across = pieces(c.size(1), tile.columns);
  on.run(pieces(c.size(0), tile.rows) * across, [&](std::size_t task, std::size_t thread) {
    Carver carver(workspace_part(on.workspace, bytes, thread));
    Scratch<Operands> scratch(carver, tile, c, a, b);
    const std::size_t row = task / across * tile.rows;
    const std::size_t column = task % across * tile.columns;
    const std::size_t rows = std::min(tile.rows, c.size(0) - row);
    const std::size_t columns = std::min(tile.columns, c.size(1) - column);
    multiply_tile(tile, c.slice(0, row, rows).slice(1, column, columns), a.slice(0, row, rows), b.slice(1, column, columns),
                  write, scratch, thread == 0 ? on.tick : Tick());
  });
}

template <class Operands>
std::size_t workspace_of(const ConstTensor& c, const ConstTensor& a, const ConstTensor& b, std::size_t threads) {
  return workspace_bytes(carved_bytes<Scratch<Operands>>(tile_of<Operands>(c, a, threads), c, a, b), threads);
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

/// Returns whether OpenBLAS computes the product.
bool by_openblas(const ConstTensor& c, const ConstTensor& a, const ConstTensor& b) {
  const auto wide = [](const ConstTensor& view) { return view.dtype() != DType::bf16; };
  return wide(c) && wide(a) && wide(b) && gemm_library() == GemmLibrary::openblas;
}

/// Returns whether the product could be computed in bf16 units.
bool in_pairs(const ConstTensor& a, const ConstTensor& b) { return a.dtype() == DType::bf16 || b.dtype() == DType::bf16; }

}  // namespace

void gemm(const Compute& on, const Tensor& c, const ConstTensor& a, const ConstTensor& b, Write write) {
  check(c, a, b);
  if (c.empty()) return;
  if (a.size(1) == 0) {
    if (write == Write::replace) fill_zero(on, c);
    return;
  }
  if (thin(a, b)) return thin_product(on, c, a, b, write);
  if (by_openblas(c, a, b)) {
    return c.dtype() == DType::f64 ? run<OpenBlasOperands<double>>(on, c, a, b, write)
                                   : run<OpenBlasOperands<float>>(on, c, a, b, write);
  }
  if (c.dtype() == DType::f64) return run<WideOperands<double>>(on, c, a, b, write);
  if (in_pairs(a, b) && level() >= Level::avx512_bf16) return run<PairOperands>(on, c, a, b, write);
  run<WideOperands<float>>(on, c, a, b, write);
}

std::size_t gemm_workspace(const ConstTensor& c, const ConstTensor& a, const ConstTensor& b, std::size_t threads) {
  check(c, a, b);
  if (c.empty() || a.size(1) == 0) return 0;
  if (thin(a, b)) return thin_product_workspace(c, a, b);
  if (by_openblas(c, a, b)) {
    return c.dtype() == DType::f64 ? workspace_of<OpenBlasOperands<double>>(c, a, b, threads)
                                   : workspace_of<OpenBlasOperands<float>>(c, a, b, threads);
  }
  if (c.dtype() == DType::f64) return workspace_of<WideOperands<double>>(c, a, b, threads);
  const std::size_t wide = workspace_of<WideOperands<float>>(c, a, b, threads);
  // The same at every level: a forecast doesn't know that of the ranks.
  return in_pairs(a, b) ? std::max(wide, workspace_of<PairOperands>(c, a, b, threads)) : wide;
}

}  // namespace tsprun::detail::kernels
