// Tiling of products in bf16 units.
#include "core/kernels/gemm_pairs.h"

#include "core/kernels/check.h"
#include "core/kernels/elementwise.h"
#include "core/kernels/pair_panels.h"

#include <algorithm>

namespace tsprun::detail::kernels::pairs {

namespace {

/// Summands of a stretch: a panel of B then has 24 KiB.
constexpr std::size_t kDepth = 256;
/// A tile's sides at most: a stretch of A has 256 KiB, one of B 270 KiB, and the tile's sums 1 MiB.
constexpr std::size_t kMostRows = 512;
constexpr std::size_t kMostColumns = 11 * kPairColumns;
/// Tiles for each of several threads, so that they finish together, and the least side of such a tile.
constexpr std::size_t kTilesPerThread = 4;
constexpr std::size_t kLeastSide = 96;

struct Tile {
  std::size_t rows;
  std::size_t columns;
};

/// Cuts `total` into equal pieces of at most `limit`, rounded up to `grain`.
constexpr std::size_t even(std::size_t total, std::size_t limit, std::size_t grain) {
  return std::min(round_up(pieces(total, pieces(total, limit)), grain), round_up(total, grain));
}

Tile tile_of(const ConstTensor& c, std::size_t threads) {
  const std::size_t m = c.size(0);
  const std::size_t n = c.size(1);
  Tile tile{.rows = even(m, kMostRows, kPairRows), .columns = even(n, kMostColumns, kPairColumns)};
  const auto tiles = [&] { return pieces(m, tile.rows) * pieces(n, tile.columns); };
  while (threads > 1 && tiles() < kTilesPerThread * threads && std::max(tile.rows, tile.columns) >= 2 * kLeastSide) {
    if (tile.rows >= tile.columns) {
      tile.rows = even(m, tile.rows / 2, kPairRows);
    } else {
      tile.columns = even(n, tile.columns / 2, kPairColumns);
    }
  }
  return tile;
}

/// Packed operands of a stretch, an operand in f32 as it is rounded and, for a C in bf16, the tile's sums: one thread's
/// workspace.
struct Scratch {
  bf16* a;  // null: A's rows are read in place
  bf16* b;
  bf16* rounded;
  float* c;  // null: C is in f32

  Scratch(Carver& carver, const Tile& tile, DType c_type, const ConstTensor& a_view, const ConstTensor& b_view)
      : a(dense_rows(a_view) ? nullptr : carver.take<bf16>(packed_elements(tile.rows, kDepth, kPairRows))),
        b(carver.take<bf16>(packed_elements(tile.columns, kDepth, kPairColumns))),
        rounded(carver.take<bf16>(a_view.dtype() == DType::f32   ? tile.rows * kDepth
                                  : b_view.dtype() == DType::f32 ? tile.columns * kDepth
                                                                 : 0)),
        c(c_type == DType::bf16 ? carver.take<float>(tile.rows * tile.columns) : nullptr) {}
};

/// Returns the part itself if it is in bf16, else a rounded copy at `to`, dense along the same dim.
ConstTensor in_bf16(const ConstTensor& part, bf16* to) {
  if (part.dtype() == DType::bf16) return part;
  const bool turned = !dense_rows(part);
  const ConstTensor stored = turned ? part.transposed(0, 1) : part;
  const Tensor rounded(reinterpret_cast<std::byte*>(to), DType::bf16, {stored.size(0), stored.size(1)});
  convert({}, rounded, stored);
  return turned ? rounded.transposed(0, 1) : rounded;
}

void multiply_tile(const Tensor& out, const ConstTensor& a, const ConstTensor& b, Write write, const Scratch& scratch,
                   const Tick& tick) {
  const std::size_t rows = out.size(0);
  const std::size_t columns = out.size(1);
  const std::size_t depth = a.size(1);
  float* c = scratch.c != nullptr ? scratch.c : out.as<float>();
  const std::size_t c_step = scratch.c != nullptr ? columns : out.stride(0);
  bool add_to_c = write == Write::add && scratch.c == nullptr;
  std::size_t at = 0;
  do {
    const std::size_t summands = std::min(kDepth, depth - at);
    pack(scratch.b, kPairColumns, in_bf16(b.slice(0, at, summands), scratch.rounded));
    const ConstTensor a_part = in_bf16(a.slice(1, at, summands), scratch.rounded);
    if (scratch.a != nullptr) pack(scratch.a, kPairRows, a_part.transposed(0, 1));
    for (std::size_t column = 0; column < columns; column += kPairColumns) {
      multiply({.rows = rows,
                .columns = std::min(kPairColumns, columns - column),
                .depth = summands,
                .a = scratch.a != nullptr ? scratch.a : a_part.as<bf16>(),
                .a_step = a_part.stride(0),
                .a_turned = scratch.a != nullptr,
                .b = scratch.b + packed_elements(column, summands, kPairColumns),
                .c = c + column,
                .c_step = c_step,
                .add = add_to_c});
    }
    add_to_c = true;
    at += summands;
    if (at < depth) tick();
  } while (at < depth);
  if (scratch.c == nullptr) return;
  const ConstTensor sum(reinterpret_cast<const std::byte*>(scratch.c), DType::f32, {rows, columns});
  if (write == Write::add) {
    add({}, out, out, sum);
  } else {
    convert({}, out, sum);
  }
}

}  // namespace

void gemm(const Compute& on, const Tensor& c, const ConstTensor& a, const ConstTensor& b, Write write) {
  const Tile tile = tile_of(c, on.threads());
  const std::size_t bytes = carved_bytes<Scratch>(tile, c.dtype(), a, b);
  const std::size_t across = pieces(c.size(1), tile.columns);
  on.run(pieces(c.size(0), tile.rows) * across, [&](std::size_t task, std::size_t thread) {
    Carver carver(workspace_part(on.workspace, bytes, thread));
    const Scratch scratch(carver, tile, c.dtype(), a, b);
    const std::size_t row = task / across * tile.rows;
    const std::size_t column = task % across * tile.columns;
    const std::size_t rows = std::min(tile.rows, c.size(0) - row);
    const std::size_t columns = std::min(tile.columns, c.size(1) - column);
    multiply_tile(c.slice(0, row, rows).slice(1, column, columns), a.slice(0, row, rows), b.slice(1, column, columns), write,
                  scratch, thread == 0 ? on.tick : Tick());
  });
}

std::size_t workspace_of(const ConstTensor& c, const ConstTensor& a, const ConstTensor& b, std::size_t threads) {
  return workspace_bytes(carved_bytes<Scratch>(tile_of(c, threads), c.dtype(), a, b), threads);
}

}  // namespace tsprun::detail::kernels::pairs
