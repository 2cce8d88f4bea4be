// Products in matrix tiles, by tiles that this file emulates: against the order of sums that tile_product-inl.h promises, so that
// machines without AMX test all but its instructions. What the instructions themselves do is tested where a machine has them
// (gemm_pairs_kernel_test.cpp).
#define TSP_TILES_ATTR
#include "core/kernels/tile_product-inl.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tsprun::detail::test::tile_product_test {
namespace {

using kernels::pairs::PairProduct;

/// Returns a value as AMX takes it: denormals are zeros.
float flushed(float value) { return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0F, value) : value; }
float value_of(std::uint16_t bits) { return flushed(std::bit_cast<float>(std::uint32_t{bits} << 16)); }

/// Eight tiles, as Intel's manual describes TDPBF16PS, TILELOADD, TILESTORED and TILEZERO for tiles of 16 rows of 64 bytes.
struct EmulatedTiles {
  using Row = std::array<std::byte, 64>;
  static inline std::array<std::array<Row, 16>, 8> tiles;
  static inline bool configured = false;

  static void begin() { configured = true; }
  static void end() { configured = false; }
  template <int kTile>
  static void zero() {
    tiles.at(kTile) = {};
  }
  template <int kTile>
  static void load(const void* from, std::size_t step) {
    for (std::size_t i = 0; i < 16; ++i) std::memcpy(&tiles.at(kTile).at(i), static_cast<const std::byte*>(from) + i * step, 64);
  }
  template <int kTile>
  static void store(void* to, std::size_t step) {
    for (std::size_t i = 0; i < 16; ++i) std::memcpy(static_cast<std::byte*>(to) + i * step, &tiles.at(kTile).at(i), 64);
  }
  template <int kC, int kA, int kB>
  static void multiply() {
    EXPECT_TRUE(configured);
    for (std::size_t row = 0; row < 16; ++row) {
      const auto a = std::bit_cast<std::array<std::uint16_t, 32>>(tiles[kA][row]);
      auto c = std::bit_cast<std::array<float, 16>>(tiles[kC][row]);
      std::array<std::array<float, 2>, 16> sums{};
      for (std::size_t pair = 0; pair < 16; ++pair) {
        const auto b = std::bit_cast<std::array<std::uint16_t, 32>>(tiles[kB][pair]);
        for (std::size_t column = 0; column < 16; ++column) {
          for (std::size_t half = 0; half < 2; ++half) {
            float& sum = sums[column][half];
            sum = flushed(std::fmaf(value_of(a[2 * pair + half]), value_of(b[2 * column + half]), sum));
          }
        }
      }
      for (std::size_t column = 0; column < 16; ++column) {
        c[column] = flushed(flushed(sums[column][0] + sums[column][1]) + flushed(c[column]));
      }
      tiles[kC][row] = std::bit_cast<Row>(c);
    }
  }
  static void turn(bf16* to, std::size_t step, const bf16* from, std::size_t rows, std::size_t pairs) {
    for (std::size_t row = 0; row < 16; ++row) {
      for (std::size_t pair = 0; pair < 16; ++pair) {
        const bool there = row < rows && pair < pairs;
        for (std::size_t half = 0; half < 2; ++half) {
          to[row * step + 2 * pair + half] = there ? from[pair * 32 + 2 * row + half] : bf16{};
        }
      }
    }
  }
};

/// A random product. What doesn't count is infinite or NaN, and memory ends where the interface says, so that AddressSanitizer
/// sees any read beyond it.
struct Case {
  std::size_t rows, columns, depth, width;
  std::size_t skip;
  bool turned, add;
  std::size_t a_step, c_step;
  std::vector<bf16> a, b;
  std::vector<float> before, c;

  Case(std::mt19937& generator, std::size_t most_depth)
      : rows(1 + generator() % 70),
        columns(0),
        depth(1 + generator() % most_depth),
        width(generator() % 2 == 0 ? 48 : 64),
        skip(generator() % 3 == 0 ? generator() % depth : 0),
        turned(generator() % 2 == 0),
        add(generator() % 2 == 0) {
    columns = 1 + generator() % width;
    if (generator() % 3 == 0) depth = (depth + 31) / 32 * 32;
    a_step = depth + generator() % 5;
    c_step = columns + generator() % 5;
    std::normal_distribution<float> normal;
    const auto number = [&] { return bf16(normal(generator) * (generator() % 50 == 0 ? 1e-38F : 1.0F)); };
    const std::size_t pairs = (depth + 1) / 2;
    const std::size_t panels = (rows + 15) / 16;
    a.assign(turned ? panels * pairs * 32 : (rows - 1) * a_step + depth, bf16(std::numeric_limits<float>::quiet_NaN()));
    b.assign(pairs * 2 * width, bf16(std::numeric_limits<float>::infinity()));
    for (std::size_t l = skip; l < depth; ++l) {
      for (std::size_t i = 0; i < rows; ++i) a[a_at(i, l)] = number();
      for (std::size_t j = 0; j < columns; ++j) b[l / 2 * 2 * width + 2 * j + l % 2] = number();
    }
    before.resize((rows - 1) * c_step + columns);
    for (float& value : before) value = normal(generator);
    c = before;
  }

  std::size_t a_at(std::size_t i, std::size_t l) const {
    if (!turned) return i * a_step + l;
    return (i / 16 * ((depth + 1) / 2) + l / 2) * 32 + i % 16 * 2 + l % 2;
  }
  void multiply() {
    const PairProduct product{.rows = rows,
                              .columns = columns,
                              .depth = depth,
                              .skip = skip,
                              .a = a.data(),
                              .a_step = a_step,
                              .a_turned = turned,
                              .b = b.data(),
                              .b_width = width,
                              .c = c.data(),
                              .c_step = c_step,
                              .add = add};
    kernels::pairs::TileProduct<EmulatedTiles>(product).run();
  }
  /// Returns an element of C as promised: groups of 32 summands, the even ones and the odd ones of each added up by themselves.
  float expected(std::size_t i, std::size_t j) const {
    float sum = add ? flushed(before[i * c_step + j]) : 0.0F;
    for (std::size_t group = 0; group < depth; group += 32) {
      std::array<float, 2> of_group{};
      for (std::size_t l = std::max(group, skip); l < std::min(group + 32, depth); ++l) {
        float& to = of_group.at(l % 2);
        to = flushed(std::fmaf(value_of(a[a_at(i, l)].bits), value_of(b[l / 2 * 2 * width + 2 * j + l % 2].bits), to));
      }
      sum = flushed(sum + flushed(of_group[0] + of_group[1]));
    }
    return sum;
  }
};

TEST(TileProduct, AddsGroupsOf32SummandsInAscendingOrder) {
  std::mt19937 generator(1);
  for (int round = 0; round < 300; ++round) {
    Case product(generator, round % 3 == 0 ? 700 : 100);
    product.multiply();
    for (std::size_t i = 0; i < product.rows; ++i) {
      for (std::size_t j = 0; j < product.c_step && i * product.c_step + j < product.c.size(); ++j) {
        const std::size_t at = i * product.c_step + j;
        const float wanted = j < product.columns ? product.expected(i, j) : product.before[at];
        ASSERT_EQ(std::bit_cast<std::uint32_t>(product.c[at]), std::bit_cast<std::uint32_t>(wanted))
            << "round " << round << ": " << product.rows << "x" << product.columns << "x" << product.depth << " at " << i << ", "
            << j << ", turned " << product.turned << ", skips " << product.skip << ", adds " << product.add;
      }
    }
    EXPECT_FALSE(EmulatedTiles::configured);
  }
}

TEST(TileProduct, ClearsCWithoutSummands) {
  std::array<float, 6> c = {1, 2, 3, 4, 5, 6};
  kernels::pairs::TileProduct<EmulatedTiles>({.rows = 2, .columns = 2, .depth = 0, .c = c.data(), .c_step = 3}).run();
  EXPECT_EQ(c, (std::array<float, 6>{0, 0, 3, 0, 0, 6}));
}

}  // namespace
}  // namespace tsprun::detail::test::tile_product_test
