// Virtual time on cores: what a core does besides kernels takes time, against closed formulas.
#include "tests/core/player_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::test::player_cores_test {
namespace {

using namespace player_support;

// --- ranks with cores --------------------------------------------------------------------------------------------------------

constexpr double kCopyRate = 4e9;
constexpr double kReduceRate = 3e9;
constexpr double kMessage = 1e-6;

/// Ranks with cores and links that take no time; kernel "gemm" takes its FLOPs in seconds and ticks every millisecond.
PlayOptions on_cores(int ranks, int cores) {
  PlayOptions how = options(ranks, true);
  how.fabric.within_bytes_per_s = std::numeric_limits<double>::infinity();
  how.fabric.within_latency = 0;
  how.price = [](int, const KernelCost& cost) { return cost.flops; };
  how.cores = CoreOptions{.cores = cores,
                          .copy_bytes_per_s = kCopyRate,
                          .reduce_bytes_per_s = kReduceRate,
                          .message_seconds = kMessage,
                          .tick_seconds = [](const KernelCost&) { return 1e-3; }};
  return how;
}

/// Puts a kernel of so many seconds before item `at`.
void compute(Program& program, std::size_t at, double seconds) {
  program.items.insert(program.items.begin() + static_cast<std::ptrdiff_t>(at),
                       {.kind = ItemKind::kernel, .index = static_cast<std::uint32_t>(program.costs.size())});
  program.costs.push_back({.kernel = "gemm", .flops = seconds});
}

TEST(PlayerWithCores, RanksThatOutnumberCoresShareThem) {
  const auto seconds = [](int cores, const std::vector<double>& kernels) {
    std::vector<Program> programs(kernels.size());
    for (std::size_t rank = 0; rank < kernels.size(); ++rank) compute(programs[rank], 0, kernels[rank]);
    return play(programs, on_cores(static_cast<int>(kernels.size()), cores)).seconds;
  };
  EXPECT_NEAR(seconds(2, {1e-3, 1e-3}), 1e-3, 1e-9);
  EXPECT_NEAR(seconds(1, {1e-3, 1e-3}), 2e-3, 1e-9);
  EXPECT_NEAR(seconds(2, {1e-3, 1e-3, 2e-3}), 2.5e-3, 1e-9);  // two thirds of a core each for 1.5 ms, then one alone
}

TEST(PlayerWithCores, ACopyTakesTheReceiversCore) {
  constexpr std::size_t kBytes = std::size_t{3} << 20;
  const auto programs = record(2, 2, 2, kBytes / 4, "", [](Context& context, Buffer all) {
    if (context.rank() == 0) context.world().send(all, 1);
    else context.world().recv(all, 0);
  });
  const PlayedRun run = play(programs, on_cores(2, 2));
  EXPECT_NEAR(run.seconds, kMessage + kBytes / kCopyRate, 1e-9);
  EXPECT_NEAR(run.ranks[0].exposed, run.seconds, 2 * kMessage);  // it waits until its memory was read
}

TEST(PlayerWithCores, AGatherInPlaceCopiesWhatOthersSentAndElsewhereItsOwnPartToo) {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  const auto in_place = record(2, 2, 2, kBytes / 4, "all_gather=direct", all_gather);
  EXPECT_NEAR(play(in_place, on_cores(2, 2)).seconds, static_cast<double>(kBytes) / 2 / kCopyRate, 3 * kMessage);
  const auto elsewhere = record(2, 2, 2, kBytes / 2, "all_gather=direct", [](Context& context, Buffer all) {
    context.world().all_gather(all.slice(all.count / 2, all.count / 4), all.slice(0, all.count / 2));
  });
  EXPECT_NEAR(play(elsewhere, on_cores(2, 2)).seconds, kBytes / kCopyRate, 3 * kMessage);
}

TEST(PlayerWithCores, ASumTakesTheCoreOfTheRankThatSums) {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  const auto programs = record(2, 2, 2, kBytes / 4 / 2 * 3, "reduce_scatter=direct", [](Context& context, Buffer all) {
    const std::size_t third = all.count / 3;
    context.world().reduce_scatter(all.slice(0, 2 * third), all.slice(2 * third, third), Reduction::sum);
  });
  EXPECT_NEAR(play(programs, on_cores(2, 2)).seconds, kBytes / kReduceRate, 3 * kMessage);
}

TEST(PlayerWithCores, CopiesGoOnInTheTicksOfAKernel) {
  constexpr std::size_t kBytes = std::size_t{2} << 20;  // two segments, of which a tick copies one
  auto programs = record(2, 2, 2, kBytes / 4, "", [](Context& context, Buffer all) {
    Work work = context.rank() == 0 ? context.world().post_send(all, 1) : context.world().post_recv(all, 0);
    work.wait();
  });
  compute(programs[0], 0, 3.5e-3);
  compute(programs[1], 1, 10e-3);
  const PlayedRun run = play(programs, on_cores(2, 2));
  const double segment = static_cast<double>(kBytes) / 2 / kCopyRate;
  EXPECT_NEAR(run.ranks[0].seconds, 4e-3 + segment + 1e-3 + segment, 3 * kMessage);
  EXPECT_NEAR(run.ranks[1].seconds, 10e-3 + 2 * segment, 3 * kMessage);
  EXPECT_NEAR(run.ranks[1].compute, 10e-3, 3 * kMessage);
  EXPECT_NEAR(run.ranks[1].exposed, 0, 3 * kMessage);
}

TEST(PlayerWithCores, TwoRunsAreAlikeToTheBitAndStepsToTheirTime) {
  const auto programs = record(8, 8, 8, 1000003, "", [](Context& context, Buffer all) {
    const Work sum = context.world().post_all_reduce(all, all, Reduction::sum, {.stream = Stream::gradients});
    all_gather(context, all.slice(0, 1000000));
    Work(sum).wait();
    context.world().barrier();
  });
  PlayOptions how = on_cores(8, 2);
  const double seconds = play(programs, how).seconds;
  EXPECT_EQ(play(programs, how).seconds, seconds);
  how.steps = 3;
  EXPECT_NEAR(play(programs, how).seconds, 3 * seconds, 0.1 * seconds);
}

}  // namespace
}  // namespace tsprun::detail::test::player_cores_test
