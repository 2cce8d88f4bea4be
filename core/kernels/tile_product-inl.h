// A product of bf16 matrices by a processor's matrix tiles: how AMX's instructions are used, apart from the instructions.
//
// A tile holds 16 rows of 64 bytes: 16 × 32 elements of A, 16 pairs × 16 columns of B as pair_panels.h packs it, or 16 × 16 sums
// in f32. C is computed in blocks of two by two tiles. One instruction multiplies a tile of A, 32 summands, by one of B:
//   even = Σ a[2p]·b[2p], odd = Σ a[2p + 1]·b[2p + 1], over ascending p with one rounding a term; c += even + odd.
// So an element of C is a chain over groups of 32 summands, counted from the product's first, and its bits depend on the values
// alone. Denormals count as zeros.
//
// Source files define TSP_TILES_ATTR, an attribute of functions, before they include this one. As it differs between them, the
// class of tiles must be in an unnamed namespace.
#pragma once

#include "core/kernels/pair_panels.h"
#include "core/kernels/parallel.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tsprun::detail::kernels::pairs {

/// Rows of a tile, and columns of one of B or C.
inline constexpr std::size_t kTileSide = 16;

/// One product. `Tiles` has the instructions, as static functions; tile numbers are template arguments:
///   begin(), end()                configure eight tiles, and release them
///   zero<tile>()                  clears a tile
///   load<tile>(from, step)        loads 16 rows of 64 bytes, `step` bytes apart; store<tile>(to, step) likewise
///   multiply<c, a, b>()           adds A·B to C, as above
///   turn(to, step, from, rows, pairs)   copies `rows` lines (at most 16) of a panel of kPairRows lines to rows, `step` elements
///                                 apart: 16 rows of 16 pairs, of which those that don't exist become zeros
template <class Tiles>
class TileProduct {
 public:
  explicit TileProduct(const PairProduct& product) : of_(product) {}

  TSP_TILES_ATTR void run() {
    Tiles::begin();
    const std::size_t begin = of_.skip / kTileDepth * kTileDepth;
    first_ = begin;
    do {
      adds_ = of_.add || first_ > begin;
      summands_ = std::min(kStretch, of_.depth - first_);
      for (std::size_t row = 0; row < of_.rows; row += 2 * kTileSide) {
        take_rows(row);
        for (std::size_t column = 0; column < of_.columns; column += 2 * kTileSide) {
          const bool two_columns = of_.columns - column > kTileSide;
          if (of_.rows - row > kTileSide) {
            two_columns ? multiply_block<2, 2>(row, column) : multiply_block<2, 1>(row, column);
          } else {
            two_columns ? multiply_block<1, 2>(row, column) : multiply_block<1, 1>(row, column);
          }
        }
      }
      first_ += summands_;
    } while (first_ < of_.depth);
    Tiles::end();
  }

 private:
  /// Summands for which rows of A are copied at once.
  static constexpr std::size_t kStretch = 256;

  /// Sets `a_` to the stretch of up to 32 rows: where they lie, if tiles can be loaded from there, otherwise a copy that is
  /// filled up with zeros.
  TSP_TILES_ATTR void take_rows(std::size_t row) {
    const std::size_t there = std::min(2 * kTileSide, of_.rows - row);
    const std::size_t skip = of_.skip - std::min(of_.skip, first_);
    if (!of_.a_turned && skip == 0 && there % kTileSide == 0 && summands_ % kTileDepth == 0) {
      a_ = of_.a + row * of_.a_step + first_;
      a_step_ = of_.a_step;
      return;
    }
    a_ = rows();
    a_step_ = kStretch;
    const std::size_t padded = round_up(summands_, kTileDepth);
    if (of_.a_turned) turn_rows(row, there);
    for (std::size_t i = 0; i < round_up(there, kTileSide); ++i) {
      bf16* to = rows() + i * kStretch;
      const std::size_t count = i < there ? summands_ : 0;
      if (!of_.a_turned && count != 0) copy(to, of_.a + (row + i) * of_.a_step + first_, count);
      std::fill(to + count, to + padded, bf16{});
      std::fill_n(to, skip, bf16{});
    }
  }

  /// Copies `there` rows of a turned A.
  TSP_TILES_ATTR void turn_rows(std::size_t row, std::size_t there) {
    const std::size_t panel = packed_elements(kPairRows, of_.depth, kPairRows);
    for (std::size_t i = 0; i < there; i += kTileSide) {
      const bf16* from = of_.a + (row + i) / kPairRows * panel + first_ * kPairRows;
      for (std::size_t at = 0; at < summands_; at += kTileDepth) {
        const std::size_t pairs = (std::min(kTileDepth, summands_ - at) + 1) / 2;
        Tiles::turn(rows() + i * kStretch + at, kStretch, from + at * kPairRows, std::min(kTileSide, there - i), pairs);
      }
    }
  }

  /// Computes up to two by two tiles of C from the stretch.
  template <std::size_t kRows, std::size_t kColumns>
  TSP_TILES_ATTR void multiply_block(std::size_t row, std::size_t column) {
    begin_sums<0>(row, column);
    if constexpr (kColumns == 2) begin_sums<1>(row, column + kTileSide);
    if constexpr (kRows == 2) begin_sums<2>(row + kTileSide, column);
    if constexpr (kRows == 2 && kColumns == 2) begin_sums<3>(row + kTileSide, column + kTileSide);
    for (std::size_t at = 0; at < summands_; at += kTileDepth) {
      const bf16* a = a_ + at;
      const std::size_t a_bytes = a_step_ * sizeof(bf16);
      const bf16* b = of_.b + (first_ + at) * of_.b_width + 2 * column;
      std::size_t b_bytes = 2 * of_.b_width * sizeof(bf16);
      if (at + kTileDepth > summands_ || first_ + at < of_.skip) {
        copy_pairs<kColumns>(b, at);
        b = pairs();
        b_bytes = kColumns * kTileBytes;
      }
      Tiles::template load<6>(b, b_bytes);
      if constexpr (kColumns == 2) Tiles::template load<7>(b + 2 * kTileSide, b_bytes);
      Tiles::template load<4>(a, a_bytes);
      if constexpr (kRows == 2) Tiles::template load<5>(a + kTileSide * a_step_, a_bytes);
      Tiles::template multiply<0, 4, 6>();
      if constexpr (kColumns == 2) Tiles::template multiply<1, 4, 7>();
      if constexpr (kRows == 2) Tiles::template multiply<2, 5, 6>();
      if constexpr (kRows == 2 && kColumns == 2) Tiles::template multiply<3, 5, 7>();
    }
    end_sums<0>(row, column);
    if constexpr (kColumns == 2) end_sums<1>(row, column + kTileSide);
    if constexpr (kRows == 2) end_sums<2>(row + kTileSide, column);
    if constexpr (kRows == 2 && kColumns == 2) end_sums<3>(row + kTileSide, column + kTileSide);
  }

  /// Copies the pairs of summands [at, at + 32) of the stretch that count, and zeros for the others, to `pairs_`.
  template <std::size_t kColumns>
  TSP_TILES_ATTR void copy_pairs(const bf16* from, std::size_t at) {
    const std::size_t count = std::min(kTileDepth, summands_ - at);
    const std::size_t skip = of_.skip - std::min(of_.skip, first_ + at);
    constexpr std::size_t kWidth = 2 * kTileSide * kColumns;  // elements of a row of pairs
    for (std::size_t pair = 0; pair < kTileDepth / 2; ++pair) {
      bf16* to = pairs() + pair * kWidth;
      if (2 * pair >= count || 2 * pair + 1 < skip) {
        std::fill_n(to, kWidth, bf16{});
        continue;
      }
      copy(to, from + pair * 2 * of_.b_width, kWidth);
      const bool no_even = 2 * pair < skip;
      const bool no_odd = 2 * pair + 1 == count;
      for (std::size_t i = 0; i < kWidth && (no_even || no_odd); i += 2) to[no_odd ? i + 1 : i] = bf16{};
    }
  }

  bool whole(std::size_t row, std::size_t column) const {
    return of_.rows - row >= kTileSide && of_.columns - column >= kTileSide;
  }
  template <int kTile>
  TSP_TILES_ATTR void begin_sums(std::size_t row, std::size_t column) {
    if (!adds_) return Tiles::template zero<kTile>();
    const float* c = of_.c + row * of_.c_step + column;
    if (whole(row, column)) return Tiles::template load<kTile>(c, of_.c_step * sizeof(float));
    const std::size_t rows = std::min(kTileSide, of_.rows - row);
    const std::size_t columns = std::min(kTileSide, of_.columns - column);
    std::fill_n(sums_, kTileSide * kTileSide, 0.0F);
    for (std::size_t i = 0; i < rows; ++i) std::copy_n(c + i * of_.c_step, columns, sums_ + i * kTileSide);
    Tiles::template load<kTile>(sums_, kTileBytes);
  }
  template <int kTile>
  TSP_TILES_ATTR void end_sums(std::size_t row, std::size_t column) {
    float* c = of_.c + row * of_.c_step + column;
    if (whole(row, column)) return Tiles::template store<kTile>(c, of_.c_step * sizeof(float));
    Tiles::template store<kTile>(sums_, kTileBytes);
    const std::size_t rows = std::min(kTileSide, of_.rows - row);
    const std::size_t columns = std::min(kTileSide, of_.columns - column);
    for (std::size_t i = 0; i < rows; ++i) std::copy_n(sums_ + i * kTileSide, columns, c + i * of_.c_step);
  }

  bf16* rows() { return reinterpret_cast<bf16*>(rows_); }
  bf16* pairs() { return reinterpret_cast<bf16*>(pairs_); }
  static void copy(bf16* to, const bf16* from, std::size_t count) {
    std::memcpy(static_cast<void*>(to), from, count * sizeof(bf16));
  }

  static constexpr std::size_t kTileBytes = 64;  // of a row

  const PairProduct& of_;
  std::size_t first_ = 0;     // summand at which the stretch begins
  std::size_t summands_ = 0;  // of the stretch
  bool adds_ = false;         // the stretch's sums begin with C
  const bf16* a_ = nullptr;
  std::size_t a_step_ = 0;
  // Elements of bf16, uninitialised.
  alignas(64) std::uint16_t rows_[2 * kTileSide * kStretch];
  alignas(64) std::uint16_t pairs_[kTileDepth * 2 * kTileSide];
  alignas(64) float sums_[kTileSide * kTileSide];
};

}  // namespace tsprun::detail::kernels::pairs
