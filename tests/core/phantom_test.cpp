// A phantom rank: it books memory as a real one does, and neither computes, moves nor touches anything.
#include "core/rank/rank.h"
#include "tests/support/run_ranks.h"
#include "transport/cause.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

namespace tsprun::detail::test::phantom_test {
namespace {

/// Some of everything that a schedule does, with messages of sizes on both sides of staging.
CategoryBytes small_schedule(Context& context, std::size_t threads) {
  tsprun::detail::RankOptions options;
  options.threads = threads;
  Rank rank(context, options);
  const OwnedTensor a = rank.tensor(Category::parameters, DType::f32, {400, 600}, "a");
  const OwnedTensor b = rank.tensor(Category::activations, DType::f32, {600, 400}, "b");
  rank.compute().fill_zero(a);
  rank.compute().fill_zero(b);
  {
    const OwnedTensor c = rank.tensor(Category::workspace, DType::f32, {400, 400}, "c");
    rank.compute().gemm("W", c, a, b);
    rank.wait(rank.world().post_all_reduce(buffer_of(ConstTensor(c.view())), buffer_of(c.view()), Reduction::sum));
    const std::array<int, 2> pair = {0, rank.size() - 1};
    if (rank.rank() == pair[0] || rank.rank() == pair[1]) {
      Communicator both = rank.world().subgroup(pair);
      const Buffer x = buffer_of(b.view());
      if (both.rank() == 0) both.send(x, 1);
      else both.recv(x, 0);
    }
  }
  for (const std::size_t rows : {1U, 2U, 8U, 20U}) {
    const OwnedTensor mine = rank.tensor(Category::communication, DType::f32, {rows, 400}, "rows");
    const OwnedTensor all = rank.tensor(Category::communication, DType::f32, {3 * rows, 400}, "all ranks' rows");
    rank.compute().fill_zero(mine);
    const Stream stream = rows < 20 ? Stream::kv : Stream::weights;
    rank.wait(rank.world().post_all_gather(buffer_of(ConstTensor(mine.view())), buffer_of(all.view()), {.stream = stream}));
  }
  rank.world().barrier();
  return rank.memory_peaks();
}

TEST(Phantom, BooksWhatARealRankBooks) {
  for (const std::size_t threads : {1U, 3U}) {
    run_ranks(3, [&](Context& context) {
      Context phantom = make_phantom(context.rank(), 3);
      EXPECT_EQ(phantom.rank(), context.rank());
      EXPECT_EQ(phantom.size(), 3);
      EXPECT_EQ(small_schedule(phantom, threads), small_schedule(context, threads));
    });
  }
}

TEST(Phantom, HoldsMoreThanAnyMachineHas) {
  Context context = make_phantom(1000, 4096);
  Rank rank(context);
  const std::size_t rows = std::size_t{1} << 18;
  const OwnedTensor weights = rank.tensor(Category::parameters, DType::f32, {rows, rows}, "256 GiB");
  rank.compute().fill_zero(weights);
  rank.world().broadcast(buffer_of(weights.view()), 7);
  EXPECT_EQ(rank.memory_peaks().total, std::uint64_t{1} << 38);
  EXPECT_EQ(rank.context().traffic().received[0], 0U);
}

TEST(Phantom, CountsFlopsAndComputesNothing) {
  PhantomOptions like;
  like.touched = true;
  Context context = make_phantom(0, 2, like);
  Rank rank(context);
  const OwnedTensor x = rank.tensor(Category::workspace, DType::f64, {4, 4}, "x");
  for (std::size_t i = 0; i < 16; ++i) x->as<double>()[i] = 1;
  rank.compute().gemm("W", x, x, x);
  EXPECT_EQ(x->as<double>()[0], 1);
  EXPECT_EQ(rank.compute().flops(), 2.0 * 4 * 4 * 4);
  EXPECT_EQ(rank.compute().sum_of_squares(x), 0);
}

TEST(Phantom, CountsThePairsThatMaskAndWindowLeave) {
  const auto pairs_of = [](const kernels::Mask& mask, std::size_t queries, std::size_t keys) {
    std::size_t pairs = 0;
    for (std::size_t i = mask.query_start; i < mask.query_start + queries; ++i) {
      for (std::size_t j = mask.key_start; j < mask.key_start + keys; ++j)
        pairs += !mask.causal || (j <= i && (mask.window == 0 || i < j + mask.window)) ? 1U : 0U;
    }
    return static_cast<double>(pairs);
  };
  for (const std::size_t window : {0U, 1U, 3U, 10U, 100U}) {
    for (const auto& [query_start, key_start] : {std::pair<std::size_t, std::size_t>{0, 0}, {7, 0}, {0, 7}, {30, 5}, {5, 30}}) {
      for (const bool causal : {true, false}) {
        if (!causal && window > 0) continue;
        const kernels::Mask mask{causal, query_start, key_start, window};
        Context context = make_phantom(0, 1);
        Rank rank(context);
        const OwnedTensor q = rank.tensor(Category::workspace, DType::f32, {2, 13, 3, 4}, "q");
        const OwnedTensor k = rank.tensor(Category::workspace, DType::f32, {2, 9, 3, 4}, "k");
        const OwnedTensor lse = rank.tensor(Category::workspace, DType::f32, {2, 3, 13}, "lse");
        rank.compute().flash_forward({.scale = 1, .mask = mask, .heads = {}}, q, lse, q, k, k);
        EXPECT_EQ(rank.compute().flops(), 4 * 4 * 2 * 3 * pairs_of(mask, 13, 9))
            << causal << " " << query_start << " " << key_start << " window " << window;
      }
    }
  }
}

#if !defined(TSP_SANITIZE_ADDRESS) && !defined(TSP_SANITIZE_THREAD)  // they map memory of their own all the time
/// As under `ulimit -v` and `ulimit -d`: a run that these allow must not fail at the audit.
TEST(Phantom, NeedsNoAddressSpace) {
  constexpr rlim_t kLittle = rlim_t{256} << 20;
  for (const auto limit : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(limit, &before), 0);
    rlimit little = before;
    std::ifstream("/proc/self/statm") >> little.rlim_cur;
    little.rlim_cur = std::min<rlim_t>(before.rlim_max, little.rlim_cur * static_cast<rlim_t>(::getpagesize()) + kLittle);
    ASSERT_EQ(::setrlimit(limit, &little), 0);
    EXPECT_NO_THROW({
      Context context = make_phantom(1, 4);
      Rank rank(context);
      EXPECT_EQ(rank.tensor(Category::parameters, DType::f32, {1 << 15, 1 << 15}, "4 GiB")->bytes(), std::size_t{1} << 32);
    });
    ::setrlimit(limit, &before);
  }
}
#endif

TEST(Phantom, OfNoRankIsRefused) {
  EXPECT_THROW(make_phantom(3, 3), Error);
  EXPECT_THROW(make_phantom(-1, 3), Error);
}

}  // namespace
}  // namespace tsprun::detail::test::phantom_test
