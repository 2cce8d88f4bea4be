// The reduction kernels against plain loops: every dtype and reduction, all small numbers of terms, lengths around the vector
// widths, misplaced arrays, both kinds of stores; NaNs, signed zeros, infinities; and term by term equal to all at once.

#include "core/kernels/reduce.h"

#include "core/kernels/level.h"

#include "tests/support/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::kernels::reduce_test {
namespace {

using Bytes = std::vector<std::byte>;

/// An array of elements at a chosen distance from a 64-byte line.
struct Array {
  Array(DType type, std::size_t elements, std::size_t misplaced)
      : dtype(type), count(elements), storage(elements * size_of(type) + 192), shift(misplaced * size_of(type)) {}
  std::byte* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(storage.data());
    return storage.data() + (64 - address % 64) % 64 + shift;
  }
  DType dtype;
  std::size_t count;
  Bytes storage;
  std::size_t shift;
};

template <class T>
T get(const std::byte* data, std::size_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void put(std::byte* data, std::size_t i, T value) {
  std::memcpy(data + i * sizeof(T), &value, sizeof(T));
}

/// bf16, f16 and f32 as f32, f64 as itself: both fit an f64, and f32 sums are made in f32.
double load(DType dtype, const std::byte* data, std::size_t i) {
  switch (dtype) {
    case DType::bf16: return static_cast<double>(std::bit_cast<float>(std::uint32_t{get<std::uint16_t>(data, i)} << 16));
    case DType::f16: return static_cast<double>(static_cast<float>(get<f16>(data, i)));
    case DType::f32: return static_cast<double>(get<float>(data, i));
    default: return get<double>(data, i);
  }
}

double combine(Reduction reduction, DType dtype, double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  switch (reduction) {
    case Reduction::max: return b > a ? b : a;
    case Reduction::min: return b < a ? b : a;
    case Reduction::product:
      return dtype == DType::f64 ? a * b : static_cast<double>(static_cast<float>(a) * static_cast<float>(b));
    default: return dtype == DType::f64 ? a + b : static_cast<double>(static_cast<float>(a) + static_cast<float>(b));
  }
}

/// What becomes of all terms combined.
double finish(Reduction reduction, DType dtype, double value, std::size_t terms) {
  if (reduction != Reduction::average) return value;
  return dtype == DType::f64 ? value / static_cast<double>(terms)
                             : static_cast<double>(static_cast<float>(value) / static_cast<float>(terms));
}

/// The bits that the result must have.
std::uint64_t expected_bits(DType dtype, double value) {
  switch (dtype) {
    case DType::bf16: return std::isnan(value) ? 0x7fc0U : bf16(static_cast<float>(value)).bits;
    case DType::f16: return std::isnan(value) ? 0x7e00U : f16(static_cast<float>(value)).bits;
    case DType::f32: return std::isnan(value) ? 0x7fc00000U : std::bit_cast<std::uint32_t>(static_cast<float>(value));
    default: return std::isnan(value) ? 0x7ff8000000000000U : std::bit_cast<std::uint64_t>(value);
  }
}
std::uint64_t bits(DType dtype, const std::byte* data, std::size_t i) {
  switch (dtype) {
    case DType::bf16:
    case DType::f16: return get<std::uint16_t>(data, i);
    case DType::f32: return get<std::uint32_t>(data, i);
    default: return get<std::uint64_t>(data, i);
  }
}

/// Any bit pattern, so infinities, NaNs and denormals too; or ordinary numbers.
void fill(Array& array, std::mt19937_64& random, bool wild) {
  for (std::size_t i = 0; i < array.count; ++i) {
    const std::uint64_t any = random();
    const double ordinary = (static_cast<double>(any >> 12) - static_cast<double>(1ULL << 51)) * 0x1p-48;
    // Signed zeros and infinities are rare among random bits.
    const double special[] = {0.0, -0.0, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
    const bool pick = wild && any % 3 == 0;
    switch (array.dtype) {
      case DType::bf16:
        put(array.data(), i,
            pick   ? bf16(static_cast<float>(special[any / 3 % 4])).bits
            : wild ? static_cast<std::uint16_t>(any >> 20)
                   : bf16(static_cast<float>(ordinary)).bits);
        break;
      case DType::f16:
        put(array.data(), i,
            pick   ? f16(static_cast<float>(special[any / 3 % 4])).bits
            : wild ? static_cast<std::uint16_t>(any >> 20)
                   : f16(static_cast<float>(ordinary)).bits);
        break;
      case DType::f32:
        if (pick) put(array.data(), i, static_cast<float>(special[any / 3 % 4]));
        else if (wild) put(array.data(), i, static_cast<std::uint32_t>(any >> 20));
        else put(array.data(), i, static_cast<float>(ordinary));
        break;
      default:
        if (pick) put(array.data(), i, special[any / 3 % 4]);
        else if (wild) put(array.data(), i, random());
        else put(array.data(), i, ordinary);
    }
  }
}

struct Case {
  Reduction reduction;
  DType dtype;
};

class Reduce : public testing::TestWithParam<Case> {
 protected:
  void check(int terms, std::size_t count, std::size_t misplaced, Stores stores, bool wild) {
    const auto [reduction, dtype] = GetParam();
    std::vector<Array> arrays;
    std::vector<const std::byte*> inputs;
    for (int t = 0; t < terms; ++t) {
      arrays.emplace_back(dtype, count, (misplaced + static_cast<std::size_t>(t)) % 16);
      fill(arrays.back(), random_, wild);
    }
    for (Array& array : arrays) inputs.push_back(array.data());
    Array out(dtype, count, misplaced);
    const std::byte guard{0xa5};
    std::fill(out.storage.begin(), out.storage.end(), guard);
    reduce(reduction, dtype, inputs, out.data(), count, stores);
    for (std::size_t i = 0; i < count; ++i) {
      double value = load(dtype, inputs[0], i);
      for (std::size_t t = 1; t < inputs.size(); ++t) value = combine(reduction, dtype, value, load(dtype, inputs[t], i));
      ASSERT_EQ(bits(dtype, out.data(), i), expected_bits(dtype, finish(reduction, dtype, value, inputs.size())))
          << terms << " terms, element " << i << " of " << count << ", misplaced by " << misplaced;
    }
    for (const std::byte* p = out.storage.data(); p < out.data(); ++p) ASSERT_EQ(*p, guard);
    for (const std::byte* p = out.data() + count * size_of(dtype); p < out.storage.data() + out.storage.size(); ++p)
      ASSERT_EQ(*p, guard);
  }
  std::mt19937_64 random_{42};
};

TEST_P(Reduce, AddsInTheGivenOrderForAllLengthsAndPlaces) {
  for (int terms = 2; terms <= 9; ++terms) {
    for (const std::size_t count :
         std::initializer_list<std::size_t>{1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 1000}) {
      for (const std::size_t misplaced : std::initializer_list<std::size_t>{0, 1, 5}) {
        check(terms, count, misplaced, Stores::cached, false);
        check(terms, count, misplaced, Stores::streaming, false);
      }
    }
  }
}

TEST_P(Reduce, HandlesNansInfinitiesZerosAndDenormals) {
  for (const int terms : {2, 3, 8}) {
    check(terms, 5003, 1, Stores::cached, true);
    check(terms, 5003, 3, Stores::streaming, true);
  }
}

TEST_P(Reduce, HasTheSameBitsOnProcessorsWithoutAvx) {
  kernels::set_level(kernels::Level::baseline);
  for (const std::size_t misplaced : std::initializer_list<std::size_t>{0, 1, 5}) {
    check(3, 1003, misplaced, Stores::cached, true);
    check(3, 1003, misplaced, Stores::streaming, true);
  }
}

TEST_P(Reduce, TakesAThousandTerms) { check(1024, 77, 0, Stores::cached, false); }

TEST_P(Reduce, CopiesASingleTermBitForBit) {
  const auto [reduction, dtype] = GetParam();
  Array in(dtype, 100, 1);
  Array out(dtype, 100, 0);
  fill(in, random_, true);
  const std::byte* input = in.data();
  reduce(reduction, dtype, {&input, 1}, out.data(), 100);
  EXPECT_EQ(std::memcmp(in.data(), out.data(), 100 * size_of(dtype)), 0);
}

TEST_P(Reduce, MayWriteOverOneOfItsTerms) {
  const auto [reduction, dtype] = GetParam();
  constexpr std::size_t kCount = 333;
  for (std::size_t target = 0; target < 3; ++target) {
    std::vector<Array> arrays(3, Array(dtype, kCount, 2));
    std::vector<const std::byte*> inputs;
    for (Array& array : arrays) {
      fill(array, random_, true);
      inputs.push_back(array.data());
    }
    Array apart(dtype, kCount, 0);
    reduce(reduction, dtype, inputs, apart.data(), kCount);
    reduce(reduction, dtype, inputs, arrays[target].data(), kCount);
    EXPECT_EQ(std::memcmp(apart.data(), arrays[target].data(), kCount * size_of(dtype)), 0);
  }
}

TEST_P(Reduce, TermByTermHasTheSameBitsAsAllAtOnce) {
  const auto [reduction, dtype] = GetParam();
  const std::size_t count = 1001;
  for (const bool wild : {false, true}) {
    for (int terms = 2; terms <= 9; ++terms) {
      std::vector<Array> arrays;
      std::vector<const std::byte*> inputs;
      for (int t = 0; t < terms; ++t) {
        arrays.emplace_back(dtype, count, static_cast<std::size_t>(t));
        fill(arrays.back(), random_, wild);
      }
      for (Array& array : arrays) inputs.push_back(array.data());
      Array at_once(dtype, count, 0);
      reduce(reduction, dtype, inputs, at_once.data(), count);

      Array partial(accumulator_of(dtype), count, 3);
      Array result(dtype, count, 1);
      widen(dtype, inputs[0], partial.data(), count);
      for (std::size_t t = 1; t + 1 < inputs.size(); ++t) {
        reduce_term(reduction, dtype, partial.data(), inputs[t], partial.data(), count, 0);
      }
      reduce_term(reduction, dtype, partial.data(), inputs.back(), result.data(), count, inputs.size());
      ASSERT_EQ(std::memcmp(at_once.data(), result.data(), count * size_of(dtype)), 0) << terms << " terms";
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Reduction reduction : {Reduction::sum, Reduction::max, Reduction::min, Reduction::product, Reduction::average}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) all.push_back({reduction, dtype});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Reduce, testing::ValuesIn(cases()), [](const testing::TestParamInfo<Case>& parameter) {
  return std::string(name(parameter.param.reduction)) + "_" + std::string(name(parameter.param.dtype));
});

template <class T>
class ReduceIntegers : public testing::Test {};
using Integers = testing::Types<std::int8_t, std::uint8_t, std::int32_t, std::int64_t, bool>;
TYPED_TEST_SUITE(ReduceIntegers, Integers);

TYPED_TEST(ReduceIntegers, AreExactAndWrapAround) {
  constexpr DType kType = dtype_of<TypeParam>();
  for (const Reduction reduction : {Reduction::sum, Reduction::max, Reduction::min, Reduction::product, Reduction::bit_and,
                                    Reduction::bit_or, Reduction::bit_xor}) {
    for (const int terms : {2, 3, 9}) {
      for (const std::size_t count : std::initializer_list<std::size_t>{1, 63, 256, 2049, 5000}) {
        std::vector<Array> arrays;
        std::vector<const std::byte*> inputs;
        for (int t = 0; t < terms; ++t) {
          arrays.emplace_back(kType, count, static_cast<std::size_t>(t));
          test::fill(std::span(reinterpret_cast<TypeParam*>(arrays.back().data()), count), 5, t);
        }
        for (Array& array : arrays) inputs.push_back(array.data());
        Array partial(kType, count, 3);
        widen(kType, inputs[0], partial.data(), count);
        for (std::size_t t = 1; t < inputs.size(); ++t) {
          const std::size_t last_of = t + 1 == inputs.size() ? inputs.size() : 0;
          reduce_term(reduction, kType, partial.data(), inputs[t], partial.data(), count, last_of);
        }
        reduce(reduction, kType, inputs, arrays[0].data(), count);  // over a term
        for (std::size_t i = 0; i < count; ++i) {
          TypeParam expected = test::sample<TypeParam>(5, 0, i);
          for (int t = 1; t < terms; ++t) expected = test::combine(expected, test::sample<TypeParam>(5, t, i), reduction);
          ASSERT_EQ(get<TypeParam>(arrays[0].data(), i), expected) << name(reduction) << " of " << terms << ", element " << i;
          ASSERT_EQ(get<TypeParam>(partial.data(), i), expected) << name(reduction) << " of " << terms << ", element " << i;
        }
      }
    }
  }
}

TEST(Bf16Sum, IsRoundedOnceFromF32) {
  // 256 + 1 + 1: rounding after every addition would lose both ones (bf16 has 8 significant bits).
  const std::uint16_t terms[] = {bf16(256.0F).bits, bf16(1.0F).bits, bf16(1.0F).bits};
  const std::byte* inputs[3];
  for (int i = 0; i < 3; ++i) inputs[i] = reinterpret_cast<const std::byte*>(terms + i);
  std::uint16_t out = 0;
  reduce(Reduction::sum, DType::bf16, inputs, reinterpret_cast<std::byte*>(&out), 1);
  EXPECT_EQ(out, bf16(258.0F).bits);
}

}  // namespace
}  // namespace tsprun::detail::kernels::reduce_test
