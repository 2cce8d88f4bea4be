// Steps in virtual time against closed formulas: traffic, FLOPs and memory are those of the theory, and time behaves as it must.
#include "layers/theory/simulate.h"

#include "layers/theory/flops.h"
#include "layers/theory/flows.h"
#include "layers/theory/peaks.h"
#include "tests/core/player_support.h"
#include "tests/layers/simulate_support.h"
#include "tests/support/refusal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tsprun::detail::test::simulate_test {
namespace {

using simulate_support::machine;
using simulate_support::setting;

TEST(Simulate, MovesTheBytesThatTheFormulasSay) {
  std::vector<theory::MeshSetting> all;
  for (const char* layout : {"tsp=4", "tp=4", "sp=4", "zero3=4", "tp=2,sp=2", "dp=2,tsp=4", "dp=4,tsp=2", "tp=2,tsp=2"}) {
    all.push_back(setting(layout));
    all.push_back(setting(layout));
    all.back().setting.model.specs = windows({40, 200});
  }
  for (const theory::MeshSetting& of : all) {
    const std::string layout = of.layout.label();
    std::array<std::uint64_t, kPurposes> expected{};
    for (const theory::Flow& flow : theory::step_flows(of.setting, of.layout))
      expected[static_cast<std::size_t>(flow.purpose)] += flow.bytes;
    const theory::Simulated played = theory::simulate(of, machine(), {.fold = false});
    for (std::size_t purpose = 0; purpose < kPurposes; ++purpose) {
      const auto which = static_cast<Purpose>(purpose);
      if (which == Purpose::other) continue;  // small sums, whose form depends on where ranks are
      EXPECT_EQ(played.received[purpose], expected[purpose]) << layout << ", " << tsprun::name(which);
    }
    EXPECT_GT(played.seconds, 0) << layout;
    EXPECT_GE(played.seconds, played.compute_seconds) << layout;
  }
}

TEST(Simulate, ComputesTheFlopsThatTheFormulasSay) {
  for (const char* layout : {"tsp=1", "tsp=4", "tp=4", "zero3=4", "tp=2,sp=2", "dp=2,tsp=4"}) {
    const theory::MeshSetting of = setting(layout);
    double expected = 0;
    for (int rank = 0; rank < of.layout.replica(); ++rank) {
      expected += theory::step_flops(of.setting, of.layout, theory::place_of(of.layout, rank)).total();
    }
    expected *= of.layout.data();
    EXPECT_NEAR(theory::simulate(of, machine(), {}).flops, expected, 1e-9 * expected) << layout;
  }
}

TEST(Simulate, HoldsTheMemoryThatAForecastSays) {
  for (const char* layout : {"tsp=4", "dp=2,tsp=4", "tp=4"}) {
    const theory::MeshSetting of = setting(layout);
    const theory::Simulated played = theory::simulate(of, machine(), {});
    theory::PeakOptions options;
    options.nodes = of.layout.ranks() / 4;
    options.pieces = machine().pieces;
    EXPECT_EQ(played.memory_peaks, theory::peaks(of, played.fullest, {}, options)) << layout;
  }
}

TEST(Simulate, RanksWorkInThePiecesOfTheirMachine) {
  // Where only launches take time, the time is the number of kernels. It grows by the same number with each tile of logits, and
  // with each K/V bucket.
  theory::Machine on = machine();
  on.flops_bf16 = on.memory_bytes_per_s = std::numeric_limits<double>::infinity();
  on.launch_seconds = 1;
  on.within_bytes_per_s = std::numeric_limits<double>::infinity();
  on.within_latency = 0;
  on.copies_slow_kernels = 1;
  const auto kernels = [&](const char* layout, std::size_t logits, std::size_t kv_bucket) {
    on.pieces = {.logits = logits, .kv_bucket = kv_bucket};
    return theory::simulate(setting(layout), on, {}).seconds;
  };
  const std::size_t row = 1024 * sizeof(float);               // a token's logits
  const std::size_t head = 2 * 8 * 256 * 32 * sizeof(short);  // K and V of one head, for 8 sequences of 256 tokens
  constexpr std::size_t kLarge = std::size_t{1} << 30;
  const double whole = kernels("tsp=1", 2048 * row, kLarge);
  const double halves = kernels("tsp=1", 1024 * row, kLarge);
  EXPECT_GT(halves, whole);
  EXPECT_DOUBLE_EQ(kernels("tsp=1", kLarge, kLarge), whole);
  EXPECT_DOUBLE_EQ(kernels("tsp=1", 256 * row, kLarge) - whole, 7 * (halves - whole));
  for (const char* layout : {"tsp=2", "sp=2"}) {
    const double one = kernels(layout, kLarge, 8 * head);
    EXPECT_GT(kernels(layout, kLarge, head), one) << layout;
    EXPECT_DOUBLE_EQ(kernels(layout, kLarge, kLarge), one) << layout;
    EXPECT_DOUBLE_EQ(kernels(layout, kLarge, head), kernels(layout, kLarge, 1)) << layout;
  }
}

TEST(Simulate, OneUnitStandsForAll) {
  EXPECT_EQ(theory::unit_of(Layout::parse("dp=128,tsp=8"), 8), 8);
  EXPECT_EQ(theory::unit_of(Layout::parse("dp=16,tsp=2"), 8), 8);
  EXPECT_EQ(theory::unit_of(Layout::parse("dp=4,tsp=16"), 8), 16);
  EXPECT_EQ(theory::unit_of(Layout::parse("dp=3,tsp=2"), 4), 6);
  EXPECT_EQ(theory::unit_of(Layout::parse("tsp=16"), 8), 16);
  for (const char* layout : {"dp=4,tsp=4", "dp=8,tsp=2", "dp=2,zero3=8"}) {
    const theory::MeshSetting of = setting(layout, 16, 1024);
    const theory::Simulated whole = theory::simulate(of, machine(), {.fold = false});
    const theory::Simulated folded = theory::simulate(of, machine(), {});
    EXPECT_EQ(whole.played, of.layout.ranks()) << layout;
    EXPECT_LT(folded.played, of.layout.ranks()) << layout;
    EXPECT_NEAR(folded.seconds, whole.seconds, 1e-3 * whole.seconds) << layout;
    EXPECT_EQ(folded.flops, whole.flops) << layout;
    for (std::size_t purpose = 0; purpose < kPurposes; ++purpose) {
      if (static_cast<Purpose>(purpose) == Purpose::other) continue;  // folded, a root's sum is played by the direct algorithm
      EXPECT_EQ(folded.received[purpose], whole.received[purpose])
          << layout << ", " << tsprun::name(static_cast<Purpose>(purpose));
    }
  }
}

TEST(Simulate, OneUnitOfWholeLeavesStandsForAll) {
  theory::Machine on = machine();
  on.rail_crossing = 1;
  on.spine = theory::Spine{.nodes_per_leaf = 2, .leaf_bytes_per_s = on.nic_bytes_per_s, .latency = 1e-6};
  EXPECT_EQ(theory::unit_of(Layout::parse("dp=8,tsp=4"), on), 8);
  EXPECT_EQ(theory::unit_of(Layout::parse("dp=3,tsp=4"), on), 12);  // not whole leaves
  EXPECT_EQ(theory::unit_of(Layout::parse("dp=4,tsp=2"), on), 4);   // all on one leaf
  const theory::MeshSetting of = setting("dp=8,tsp=4", 16, 1024);
  for (const auto& [per_rail, spine] : {std::tuple(false, 1e30), std::tuple(true, 1e30),
                                        std::tuple(false, 2 * on.nic_bytes_per_s), std::tuple(true, on.nic_bytes_per_s / 8)}) {
    on.spine->leaf_per_rail = per_rail;
    on.spine->bytes_per_s = spine;
    const theory::Simulated whole = theory::simulate(of, on, {.fold = false});
    const theory::Simulated folded = theory::simulate(of, on, {});
    EXPECT_EQ(folded.played, 8);
    EXPECT_NEAR(folded.seconds, whole.seconds, 1e-3 * whole.seconds) << per_rail << ", " << spine;
    for (const char* kind : {"leaf to spine", "spine to leaf", "spine"}) {
      const auto use = [&](const theory::Simulated& run) { return std::ranges::find(run.links, kind, &theory::LinkUse::kind); };
      ASSERT_NE(use(whole), whole.links.end()) << kind;
      ASSERT_NE(use(folded), folded.links.end()) << kind;
      EXPECT_NEAR(use(folded)->bytes, use(whole)->bytes, 1e-2 * use(whole)->bytes) << kind << per_rail;
    }
  }
  on.spine->leaf_per_rail = true;
  // A leaf of each rail may have bytes of all nodes below it.
  EXPECT_EQ(theory::unit_of(Layout::parse("dp=2,tsp=4"), on), 8);
}

TEST(Simulate, TwoRunsAreAlikeToTheBit) {
  const theory::MeshSetting of = setting("dp=2,tsp=4");
  const theory::Simulated one = theory::simulate(of, machine(), {});
  const theory::Simulated other = theory::simulate(of, machine(), {});
  EXPECT_EQ(one.seconds, other.seconds);
  EXPECT_EQ(one.exposed_seconds, other.exposed_seconds);
  EXPECT_EQ(one.messages, other.messages);
}

TEST(Simulate, TwiceTheRatesAndHalfTheLatenciesTakeHalfTheTime) {
  const theory::MeshSetting of = setting("tsp=8");
  const theory::Machine slow = machine();
  theory::Machine fast = slow;
  fast.flops_bf16 = 2 * *slow.flops_bf16;
  fast.flops_f32 = 2 * *slow.flops_f32;
  for (double theory::Machine::*rate :
       {&theory::Machine::memory_bytes_per_s, &theory::Machine::within_bytes_per_s, &theory::Machine::nic_bytes_per_s}) {
    fast.*rate *= 2;
  }
  fast.within_latency /= 2;
  fast.nic_latency /= 2;
  fast.launch_seconds /= 2;
  EXPECT_EQ(theory::simulate(of, fast, {}).seconds, theory::simulate(of, slow, {}).seconds / 2);
}

TEST(Simulate, OnInfiniteLinksWithoutLatencyTheSlowestRankDecides) {
  const theory::MeshSetting of = setting("tsp=4");
  theory::Machine ideal = machine();
  ideal.within_bytes_per_s = std::numeric_limits<double>::infinity();
  ideal.within_latency = 0;
  const theory::Simulated played = theory::simulate(of, ideal, {});
  EXPECT_LT(played.seconds, 1.1 * played.compute_seconds);
  EXPECT_GE(played.seconds, played.compute_seconds);
}

TEST(Simulate, WaitingForEveryOperationAtOnceExposesCommunication) {
  const theory::MeshSetting of = setting("tsp=4", 4, 4096);
  const theory::Simulated overlapped = theory::simulate(of, machine(), {});
  const theory::Simulated blocking = theory::simulate(of, machine(), {.blocking = true});
  EXPECT_GT(blocking.exposed_seconds, 2 * overlapped.exposed_seconds);
  EXPECT_GT(blocking.seconds, overlapped.seconds);
}

TEST(Simulate, KernelsTakeTheirLaunchAndTheLongerOfFlopsAndBytes) {
  theory::Machine on = machine();
  on.flops_bf16 = 1e12;
  on.gemm_efficiency = 0.5;
  on.memory_bytes_per_s = 1e9;
  on.memory_efficiency = 0.8;
  on.launch_seconds = 3;
  const auto seconds = [&](double flops, std::uint64_t bytes) {
    return theory::kernel_seconds(
        {.kernel = "gemm", .dtype = DType::bf16, .flops = flops, .bytes_read = bytes / 4, .bytes_written = bytes - bytes / 4},
        on);
  };
  EXPECT_DOUBLE_EQ(seconds(5e12, 1000), 13);
  EXPECT_DOUBLE_EQ(seconds(5e12, 80'000'000'000), 103);
  EXPECT_DOUBLE_EQ(seconds(0, 8'000'000'000), 13);
}

TEST(Simulate, AHostStartsKernelsOneAfterAnother) {
  // Every kernel takes a second, and the first one waits for the host alone.
  theory::Machine on = machine();
  on.flops_bf16 = on.memory_bytes_per_s = std::numeric_limits<double>::infinity();
  on.launch_seconds = 1;
  const auto seconds = [&](double host) { return theory::simulate(setting("tsp=1"), on, {.host_seconds = host, .binds = true}); };
  const double kernels = seconds(0).seconds;
  EXPECT_GT(kernels, 50);
  EXPECT_NE(seconds(0).binds, "the host");
  EXPECT_DOUBLE_EQ(seconds(0.5).seconds, 0.5 + kernels);
  EXPECT_DOUBLE_EQ(seconds(3).seconds, 3 * kernels + 1);
  EXPECT_EQ(seconds(3).binds, "the host");
  EXPECT_DOUBLE_EQ(seconds(3).compute_seconds, seconds(3).seconds);
}

TEST(Simulate, AnAllReduceOnEightMi300xTakesAboutWhatRcclsDoes) {
  // RCCL's measured all_reduce of N bytes on eight MI300X: 55 µs and 1.75 · N over 317 GB/s.
  const theory::Machine on = theory::find_machine("mi300x");
  for (const double bytes : {128e6, 134217728.0, 1e9}) {
    const auto programs =
        player_support::record(8, 8, 8, static_cast<std::size_t>(bytes) / 4, "",
                               [](Context& context, Buffer all) { context.world().all_reduce(all, Reduction::sum); });
    PlayOptions how = player_support::options(8, true);
    how.fabric.within_bytes_per_s = on.within_bytes_per_s;
    how.fabric.within_latency = on.within_latency;
    const double published = 55e-6 + 1.75 * bytes / 317e9;
    EXPECT_NEAR(play(programs, how).seconds, published, 0.1 * published) << bytes;
  }
}

TEST(Simulate, ATreeOfSumsTakesTwoLatenciesForEachBitOfTheNumberOfNodes) {
  const auto seconds = [](int nodes, Algorithm algorithm) {
    const auto sum = [&](Context& context, Buffer all) {
      context.world().all_reduce(all, Reduction::sum, {.algorithm = algorithm});
    };
    const auto programs = player_support::record(nodes, nodes, 1, 1024, "", sum, true);
    PlayOptions how = player_support::options(nodes, false);
    how.fabric.ranks_per_node = 1;
    return play(programs, how).seconds;
  };
  for (const auto& [nodes, bits] : {std::pair(4, 2), std::pair(16, 4), std::pair(50, 6), std::pair(64, 6)}) {
    const double expected = 2 * bits * player_support::kLatency;
    EXPECT_NEAR(seconds(nodes, Algorithm::tree), expected, 0.1 * expected) << nodes;
    EXPECT_GE(seconds(nodes, Algorithm::ring), 2 * (nodes - 1) * player_support::kLatency) << nodes;
  }
}

TEST(Simulate, ASlowRankComputesLongerAndOthersWait) {
  const theory::MeshSetting of = setting("tsp=4", 4, 1024);
  const theory::Simulated usual = theory::simulate(of, machine(), {});
  const theory::Simulated slow = theory::simulate(of, machine(), {.fold = false, .slow_ranks = {{.rank = 2, .factor = 3}}});
  EXPECT_NEAR(slow.compute_seconds, 3 * usual.compute_seconds, 0.02 * slow.compute_seconds);
  EXPECT_GT(slow.exposed_seconds, 1.5 * usual.compute_seconds);
  EXPECT_NE(refused_text([&] { theory::simulate(of, machine(), {.slow_ranks = {{.rank = 2, .factor = 3}}}); }).find("every rank"),
            std::string::npos);
  EXPECT_NE(refused_text([&] {
              theory::simulate(of, machine(), {.fold = false, .slow_ways = {{.one = 0, .other = 4, .factor = 3}}});
            }).find("slow rank 4: ranks are 0 to 3"),
            std::string::npos);
}

TEST(Simulate, OfASynchronousScheduleCommunicationIsExposed) {
  for (const char* layout : {"tsp=4", "tp=4", "zero3=4"}) {
    const theory::Simulated played = theory::simulate(setting(layout, 4, 1024), machine(), {.blocking = true, .trace = true});
    ASSERT_EQ(played.traces.size(), 4U);
    for (const PlayedTrace& trace : played.traces) {
      double communicates = 0;
      double waits = 0;
      for (const TraceEvent& event : trace.events) {
        const auto seconds = static_cast<double>(event.end_ns - event.begin_ns);
        if (event.op) communicates += seconds;
        else if (event.name == "wait") waits += seconds;
      }
      EXPECT_GT(communicates, 0) << layout;
      EXPECT_GE(waits, 0.8 * communicates) << layout;
      EXPECT_LE(waits, 1.01 * communicates) << layout;
    }
  }
}

TEST(Simulate, TracesEndWithTheStepAndHoldThePeak) {
  const theory::MeshSetting of = setting("dp=2,tsp=4");
  const theory::Simulated played = theory::simulate(of, machine(), {.trace = true});
  std::uint64_t ends = 0;
  std::uint64_t most = 0;
  for (const PlayedTrace& trace : played.traces) {
    for (const TraceEvent& event : trace.events) ends = std::max(ends, event.end_ns);
    for (const TraceMemory& sample : trace.memory) most = std::max(most, sample.bytes.total);
  }
  EXPECT_EQ(played.traces.size(), 4U);
  EXPECT_NEAR(static_cast<double>(ends) * 1e-9, played.seconds, 1e-8);
  // Collectives take memory of their own.
  EXPECT_LE(most, played.memory_peaks.total);
  EXPECT_GT(static_cast<double>(most), 0.9 * static_cast<double>(played.memory_peaks.total));
}

TEST(Simulate, AMachineWithoutFlopsForTheTypeIsRefused) {
  theory::Machine lacking = machine();
  lacking.flops_bf16.reset();
  EXPECT_NE(refused_text([&] { theory::simulate(setting("tsp=4"), lacking, {}); }).find("doesn't state flops_per_s for bf16"),
            std::string::npos);
}

}  // namespace
}  // namespace tsprun::detail::test::simulate_test
