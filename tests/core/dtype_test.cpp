// Names and sizes of element types; the conversions of bf16 and f16 against a search for the nearest representable value.

#include "tsprun/types.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace tsprun::detail::dtype_test {
namespace {

float from_bits(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

TEST(DTypeNames, GoThereAndBack) {
  for (int i = 0; i < kDTypeCount; ++i) EXPECT_EQ(dtype_from_name(name(static_cast<DType>(i))), static_cast<DType>(i));
  EXPECT_EQ(name(DType::byte), "bytes");
  EXPECT_EQ(name(DType::bf16), "bf16");
  EXPECT_EQ(dtype_from_name("half"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
}

TEST(DTypeSizes, AreThoseOfTheElements) {
  EXPECT_EQ(size_of(DType::byte), 1U);
  EXPECT_EQ(size_of(DType::bf16), 2U);
  EXPECT_EQ(size_of(DType::f32), 4U);
  EXPECT_EQ(size_of(DType::f64), 8U);
  EXPECT_EQ(size_of(DType::f16), 2U);
  EXPECT_EQ(size_of(DType::i8), 1U);
  EXPECT_EQ(size_of(DType::u8), 1U);
  EXPECT_EQ(size_of(DType::i32), 4U);
  EXPECT_EQ(size_of(DType::i64), 8U);
  EXPECT_EQ(size_of(DType::boolean), 1U);
}

TEST(Bf16, EveryValueSurvivesTheWayThroughF32) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    bf16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(bf16(wide))));
    } else {
      EXPECT_EQ(bf16(wide).bits, bits);
    }
  }
}

TEST(Bf16, RoundsToTheNearestAndTiesToEven) {
  std::mt19937 random(1);
  std::uniform_int_distribution<std::uint32_t> any_bits;
  for (int i = 0; i < 200000; ++i) {
    std::uint32_t bits = any_bits(random);
    if (i % 4 == 0) bits = (bits & 0xffff0000U) | 0x8000U;  // exactly between two
    const auto value = std::bit_cast<float>(bits);
    if (!std::isfinite(value)) continue;
    const auto below = static_cast<std::uint16_t>(bits >> 16);  // towards zero
    const auto above = static_cast<std::uint16_t>(below + 1);
    // Distances are exact in f64; beyond the largest finite value the next step up stands for infinity.
    const double low = from_bits(below);
    const double high = std::isinf(from_bits(above)) ? std::copysign(std::ldexp(1.0, 128), low) : double{from_bits(above)};
    const double to_low = std::fabs(double{value} - low);
    const double to_high = std::fabs(high - double{value});
    const std::uint16_t nearest = to_low < to_high ? below : to_high < to_low ? above : (below % 2 == 0 ? below : above);
    ASSERT_EQ(bf16(value).bits, nearest) << value;
  }
}

TEST(Bf16, NanStaysQuietNan) {
  for (const std::uint32_t bits : {0x7fc00000U, 0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffffffffU}) {
    const std::uint16_t narrow = bf16(std::bit_cast<float>(bits)).bits;
    EXPECT_GT(narrow & 0x7fff, 0x7f80) << std::hex << bits;
    EXPECT_NE(narrow & 0x0040, 0) << std::hex << bits;
  }
  EXPECT_EQ(bf16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
}

/// The value of an f16 by its definition.
double f16_value(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const double fraction = (bits & 0x3ff) / 1024.0;
  const double size = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  return (bits & 0x8000) != 0 ? -size : size;
}

TEST(F16, EveryValueIsThatOfItsDefinitionAndComesBack) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    f16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(value);
    if ((bits & 0x7c00) != 0x7c00) EXPECT_EQ(double{wide}, f16_value(bits)) << std::hex << bits;
    else if ((bits & 0x3ff) == 0) EXPECT_EQ(wide, bits == 0x7c00 ? HUGE_VALF : -HUGE_VALF);
    else EXPECT_TRUE(std::isnan(wide));
    if (std::isnan(wide)) EXPECT_EQ(f16(wide).bits & 0x7e00, 0x7e00);
    else EXPECT_EQ(f16(wide).bits, bits);
  }
}

TEST(F16, RoundsToTheNearestAndTiesToEven) {
  std::mt19937 random(2);
  for (std::uint32_t below = 0; below < 0x7c00; ++below) {
    const double low = f16_value(below);
    // The next step beyond the largest finite value stands for infinity.
    const double high = below == 0x7bff ? 65536.0 : f16_value(below + 1);
    const double middle = (low + high) / 2;  // exact in f32, too
    EXPECT_EQ(f16(static_cast<float>(middle)).bits, below % 2 == 0 ? below : below + 1) << middle;
    EXPECT_EQ(f16(-std::nextafter(static_cast<float>(middle), 0.0F)).bits, below | 0x8000) << middle;
    EXPECT_EQ(f16(std::nextafter(static_cast<float>(middle), HUGE_VALF)).bits, below + 1) << middle;
    const float any = static_cast<float>(low + (high - low) * static_cast<double>(random() % 1024) / 1024);
    const bool down = double{any} < middle || (double{any} == middle && below % 2 == 0);
    EXPECT_EQ(f16(any).bits, down ? below : below + 1) << any;
  }
  EXPECT_EQ(f16(std::numeric_limits<float>::max()).bits, 0x7c00);
  EXPECT_EQ(f16(std::numeric_limits<float>::denorm_min()).bits, 0);
}

TEST(Buffers, SlicesCountElements) {
  double values[10] = {};
  const Buffer buffer(std::span<double>(values, 10));
  EXPECT_EQ(buffer.bytes(), 80U);
  const Buffer slice = buffer.slice(3, 2);
  EXPECT_EQ(slice.data, reinterpret_cast<std::byte*>(values + 3));
  EXPECT_EQ(slice.bytes(), 16U);
}

}  // namespace
}  // namespace tsprun::detail::dtype_test
