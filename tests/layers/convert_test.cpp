// Conversions of stored elements, against exact values and a search for the nearest one.
#include "layers/io/convert.h"

#include "transport/cause.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace tsprun::detail::convert_test {
namespace {

double exact(std::uint16_t bits) { return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16)); }

/// The nearest bf16 by looking at all that could be: ties go to the even one.
std::uint16_t nearest(double value) {
  std::uint16_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  const int sign = std::signbit(value) ? 0x8000 : 0;
  for (int magnitude = 0; magnitude <= 0x7f7f; ++magnitude) {
    const auto bits = static_cast<std::uint16_t>(sign | magnitude);
    const double gap = std::abs(exact(bits) - value);
    if (gap < distance || (gap == distance && bits % 2 == 0)) {
      distance = gap;
      best = bits;
    }
  }
  // From half a step beyond the largest on, infinity.
  const double limit = 0x1.ffp127;
  return std::abs(value) >= limit ? static_cast<std::uint16_t>(sign | 0x7f80) : best;
}

TEST(Bf16From, RoundsOnceToTheNearest) {
  // The f32 nearest to the first lies on a tie that the value itself doesn't.
  std::vector<double> values = {1 + 0x1p-8 + 0x1p-40,
                                1 + 0x1p-8,
                                1 + 0x1p-8 - 0x1p-40,
                                1 + 3 * 0x1p-8,
                                1 + 3 * 0x1p-8 - 0x1p-45,
                                0.0,
                                -0.0,
                                1e-320,
                                0x1p-134,
                                0x1.8p-134,
                                -0x1.fep127,
                                0x1.ffp127,
                                0x1.fefffffffffffp127,
                                1e300,
                                -1e300};
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> mantissa(-2, 2);
  std::uniform_int_distribution<int> exponent(-140, 127);
  for (int i = 0; i < 200; ++i) values.push_back(std::ldexp(mantissa(random), exponent(random)));
  for (const double value : values) EXPECT_EQ(bf16_from(value).bits, nearest(value)) << value;
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16_from(std::nan("")))));
  EXPECT_EQ(bf16_from(-std::numeric_limits<double>::infinity()).bits, 0xff80);
}

TEST(Convert, EveryHalfHasItsValue) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto stored = static_cast<std::uint16_t>(bits);
    double result = 0;
    convert_from_stored(StoredType::F16, reinterpret_cast<const std::byte*>(&stored), DType::f64,
                        reinterpret_cast<std::byte*>(&result), 1);
    const int exponent = static_cast<int>(bits >> 10 & 0x1f);
    const int fraction = static_cast<int>(bits & 0x3ff);
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == 0x1f && fraction != 0) {
      EXPECT_TRUE(std::isnan(result));
      continue;
    }
    const double expected = exponent == 0x1f ? sign * std::numeric_limits<double>::infinity()
                            : exponent == 0  ? sign * std::ldexp(fraction, -24)
                                             : sign * std::ldexp(1024 + fraction, exponent - 25);
    EXPECT_EQ(result, expected);
    EXPECT_EQ(std::signbit(result), std::signbit(expected));
  }
}

TEST(Convert, WorksFromAndToAllTypesAtOddAddresses) {
  const std::vector<double> values = {0, 1, -2.5, 0.15625, 1024, -65504};  // exact in all types
  const auto stored = [&](StoredType type, double value, std::byte* at) {
    if (type == StoredType::F64) std::memcpy(at, &value, 8);
    const auto single = static_cast<float>(value);
    if (type == StoredType::F32) std::memcpy(at, &single, 4);
    const auto brain = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(single) >> 16);
    if (type == StoredType::BF16) std::memcpy(at, &brain, 2);
    int exponent = 0;
    const double fraction = std::frexp(std::abs(value), &exponent);
    const auto half = static_cast<std::uint16_t>(
        value == 0 ? 0 : (value < 0 ? 0x8000 : 0) + ((exponent + 14) << 10) + static_cast<int>(fraction * 2048) - 1024);
    if (type == StoredType::F16) std::memcpy(at, &half, 2);
  };
  for (const StoredType from : {StoredType::F64, StoredType::F32, StoredType::F16, StoredType::BF16}) {
    for (const DType to : {DType::f64, DType::f32, DType::bf16}) {
      std::vector<std::byte> source(1 + values.size() * size_of(from));
      std::vector<std::byte> target(1 + values.size() * size_of(to));
      const bool narrow = from == StoredType::BF16 || to == DType::bf16;  // −65504 has 11 significant bits, bf16 has 8
      for (std::size_t i = 0; i < values.size(); ++i) stored(from, values[i], source.data() + 1 + i * size_of(from));
      convert_from_stored(from, source.data() + 1, to, target.data() + 1, values.size());
      for (std::size_t i = 0; i + (narrow ? 1 : 0) < values.size(); ++i) {
        double result = 0;
        convert_from_stored(stored_type_of(to), target.data() + 1 + i * size_of(to), DType::f64,
                            reinterpret_cast<std::byte*>(&result), 1);
        EXPECT_EQ(result, values[i]) << name(from) << " to " << name(to);
      }
    }
  }
}

TEST(StoredTypes, WhatIsNoNumberIsRefusedAndNothingIsLeftUnwrittenInSilence) {
  const std::array<std::byte, 8> source{};
  std::array<std::byte, 8> target{};
  for (const StoredType from : {StoredType::I64, StoredType::F8_E4M3, StoredType::BOOL}) {
    EXPECT_THROW(convert_from_stored(from, source.data(), DType::f32, target.data(), 1), Error) << name(from);
  }
  EXPECT_THROW(convert_from_stored(StoredType::F32, source.data(), DType::byte, target.data(), 1), Error);
}

TEST(StoredTypes, HaveTheFormatsNamesAndSizes) {
  EXPECT_EQ(stored_type_from_name("BF16"), StoredType::BF16);
  EXPECT_EQ(stored_type_from_name("bf16"), std::nullopt);
  EXPECT_EQ(stored_type_from_name("F31"), std::nullopt);
  EXPECT_EQ(size_of(StoredType::F64), 8U);
  EXPECT_EQ(size_of(StoredType::F16), 2U);
  EXPECT_EQ(size_of(StoredType::BOOL), 1U);
  EXPECT_TRUE(is_readable(StoredType::F16));
  EXPECT_FALSE(is_readable(StoredType::I64));
  EXPECT_FALSE(is_readable(StoredType::F8_E4M3));
}

}  // namespace
}  // namespace tsprun::detail::convert_test
