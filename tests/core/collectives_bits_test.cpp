// Bit-equality: between algorithms, from run to run, and with what IEEE 754 has beside ordinary numbers.

#include "tests/support/calls.h"
#include "tests/support/oracle.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

namespace tsprun::detail::test::collectives_bits_test {
namespace {

/// Signed zeros, infinities, NaNs with payloads, denormals, the largest numbers, ordinary ones.
float special(std::uint64_t bits) {
  switch (bits % 16) {
    case 0: return 0.0F;
    case 1: return -0.0F;
    case 2: return std::numeric_limits<float>::infinity();
    case 3: return -std::numeric_limits<float>::infinity();
    case 4: return std::bit_cast<float>(0x7fc00000U | static_cast<std::uint32_t>(bits >> 44));
    case 5: return std::numeric_limits<float>::denorm_min();
    case 6: return std::numeric_limits<float>::max();
    case 7: return -std::numeric_limits<float>::max();
    default: return sample<float>(bits, 0, 0);
  }
}

template <Element T>
std::vector<T> special_terms(int ranks, std::uint64_t seed, std::size_t index) {
  std::vector<T> terms;
  for (int rank = 0; rank < ranks; ++rank) {
    terms.push_back(static_cast<T>(special(mix(seed, static_cast<std::uint64_t>(rank), index))));
  }
  return terms;
}

template <Element T>
bool is_nan(T value) {
  return std::isnan(static_cast<Accumulator<T>>(value));
}

/// all_reduce of special values under one algorithm; rank 0's result, after all ranks were found to hold the same bits.
template <Element T>
std::vector<T> reduce_specials(int ranks, std::size_t count, Reduction reduction, Algorithm algorithm) {
  std::vector<std::vector<T>> results(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Context& context) {
    std::vector<T> send;
    for (std::size_t i = 0; i < count; ++i)
      send.push_back(special_terms<T>(ranks, 5, i)[static_cast<std::size_t>(context.rank())]);
    std::vector<T>& recv = results[static_cast<std::size_t>(context.rank())];
    recv.resize(count);
    CallOptions options;
    options.algorithm = algorithm;
    context.world().all_reduce(std::span<const T>(send), std::span<T>(recv), reduction, options);
  });
  for (const std::vector<T>& result : results) {
    for (std::size_t i = 0; i < count; ++i) EXPECT_TRUE(same_bits(result[i], results[0][i])) << "element " << i;
  }
  return results[0];
}

template <Element T>
void check_specials() {
  constexpr std::size_t kCount = 4099;
  for (int ranks : {2, 3, 5}) {
    for (Reduction reduction : reductions_of(dtype_of<T>())) {
      SCOPED_TRACE(std::string(name(reduction)) + " over " + std::to_string(ranks) + " ranks of " +
                   std::string(name(dtype_of<T>())));
      const std::vector<T> first = reduce_specials<T>(ranks, kCount, reduction, Algorithm::direct);
      for (std::size_t i = 0; i < kCount; ++i) {
        const int chunk = all_reduce_chunk(kCount, ranks, i);
        const T expected = reduce_terms<T>(special_terms<T>(ranks, 5, i), chunk, reduction);
        if (is_nan(expected)) {
          EXPECT_TRUE(is_nan(first[i])) << "element " << i << " is " << show(first[i]);
        } else {
          EXPECT_EQ(static_cast<Accumulator<T>>(expected), static_cast<Accumulator<T>>(first[i])) << "element " << i;
        }
      }
      for (Algorithm algorithm : algorithms_of(Op::all_reduce)) {
        const std::vector<T> other = reduce_specials<T>(ranks, kCount, reduction, algorithm);
        for (std::size_t i = 0; i < kCount; ++i) {
          EXPECT_TRUE(same_bits(first[i], other[i]))
              << "element " << i << ": direct " << show(first[i]) << ", " << name(algorithm) << " " << show(other[i]);
        }
      }
    }
  }
}

TEST(CollectiveBits, AlgorithmsAgreeOnSpecialValuesF32) { check_specials<float>(); }
TEST(CollectiveBits, AlgorithmsAgreeOnSpecialValuesF64) { check_specials<double>(); }
TEST(CollectiveBits, AlgorithmsAgreeOnSpecialValuesBf16) { check_specials<bf16>(); }
TEST(CollectiveBits, AlgorithmsAgreeOnSpecialValuesF16) { check_specials<f16>(); }

// One NaN anywhere, at any rank, must reach the result: comparisons alone lose it on one side or the other.
TEST(CollectiveBits, MinAndMaxPropagateOneNan) {
  constexpr int kRanks = 4;
  constexpr std::size_t kCount = 64;
  for (Algorithm algorithm : algorithms_of(Op::all_reduce)) {
    for (Reduction reduction : {Reduction::min, Reduction::max}) {
      run_ranks(kRanks, [&](Context& context) {
        std::vector<float> data(kCount);
        for (std::size_t i = 0; i < kCount; ++i) {
          data[i] =
              static_cast<int>(i % kRanks) == context.rank() ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(i);
        }
        CallOptions options;
        options.algorithm = algorithm;
        context.world().all_reduce(Buffer(std::span<float>(data)), reduction, options);
        for (std::size_t i = 0; i < kCount; ++i) EXPECT_TRUE(std::isnan(data[i])) << name(algorithm) << " element " << i;
      });
    }
  }
}

// bf16 is added in f32 and rounded once: 256 + 1 + 1 is 258 so, but 256 if every partial sum is rounded.
TEST(CollectiveBits, Bf16IsRoundedOnceAtTheEnd) {
  for (Algorithm algorithm : algorithms_of(Op::all_reduce)) {
    run_ranks(3, [&](Context& context) {
      for (std::size_t count : {std::size_t{3}, std::size_t{30'000}}) {
        std::vector<bf16> data(count, bf16(context.rank() == 1 ? 256.0F : 1.0F));
        CallOptions options;
        options.algorithm = algorithm;
        context.world().all_reduce(Buffer(std::span<bf16>(data)), Reduction::sum, options);
        for (std::size_t i = 0; i < count; ++i)
          ASSERT_EQ(static_cast<float>(data[i]), 258.0F) << name(algorithm) << " element " << i;
      }
    });
  }
}

// The same sum ends on its owner by reduce, by reduce_scatter and as a chunk of all_reduce: to a root r all add r+1, …, r.
TEST(CollectiveBits, ReduceReduceScatterAndAllReduceAgree) {
  constexpr int kRanks = 5;
  constexpr std::size_t kCount = 777;
  run_ranks(kRanks, [](Context& context) {
    Communicator& world = context.world();
    std::vector<float> send(kCount * kRanks);
    fill(std::span<float>(send), 9, context.rank());
    std::vector<float> reduced_whole(send.size());
    world.all_reduce(std::span<const float>(send), std::span<float>(reduced_whole), Reduction::sum);
    std::vector<float> scattered(kCount);
    world.reduce_scatter(std::span<const float>(send), std::span<float>(scattered), Reduction::sum);
    const std::size_t first = static_cast<std::size_t>(context.rank()) * kCount;
    for (int root = 0; root < kRanks; ++root) {
      std::vector<float> reduced(kCount);
      const std::span<const float> chunk = std::span<const float>(send).subspan(static_cast<std::size_t>(root) * kCount, kCount);
      world.reduce(chunk, std::span<float>(reduced), Reduction::sum, root);
      if (root != context.rank()) continue;
      for (std::size_t i = 0; i < kCount; ++i) {
        EXPECT_TRUE(same_bits(reduced[i], scattered[i])) << "element " << i;
        EXPECT_TRUE(same_bits(reduced[i], reduced_whole[first + i])) << "element " << i;
      }
    }
  });
}

TEST(AllReduce, TakesMoreSegmentsThanALaneHasSlots) {
  constexpr std::size_t kCount = std::size_t{12} << 20;  // 48 MiB: 24 segments of 1 MiB a rank
  run_ranks(2, [&](Context& context) {
    const HeapBlock block = context.allocate_elements<float>(kCount, "values");
    const std::span<float> values = block.as<float>();
    std::fill(values.begin(), values.end(), static_cast<float>(context.rank() + 1));
    context.world().all_reduce(Buffer(values), Reduction::sum, {.algorithm = Algorithm::direct});
    EXPECT_EQ(std::count(values.begin(), values.end(), 3.0F), static_cast<std::ptrdiff_t>(kCount));
  });
}

}  // namespace
}  // namespace tsprun::detail::test::collectives_bits_test
