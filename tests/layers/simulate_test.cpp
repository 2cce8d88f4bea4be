// Steps in virtual time against closed formulas: traffic, FLOPs and memory are those of the theory, and time behaves as it must.
#include "layers/theory/simulate.h"

#include "layers/theory/flops.h"
#include "layers/theory/flows.h"
#include "layers/theory/peaks.h"
#include "tests/layers/model_run.h"
#include "tests/support/refusal.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace tsprun::detail::test::simulate_test {
namespace {

theory::MeshSetting setting(const std::string& layout, std::size_t batch = 8, std::size_t sequence = 256) {
  ModelCase of{.config = small_config(256, 2, 8, 8, 32, 512, 1024), .batch = batch, .sequence = sequence, .dtype = DType::bf16};
  return {.setting = of.setting(), .layout = Layout::parse(layout)};
}

theory::Machine machine(const std::string& name = "mi300x", int gpus_per_node = 4) {
  theory::Machine found = theory::find_machine(name);
  found.gpus_per_node = gpus_per_node;
  found.nics_per_node = gpus_per_node;
  return found;
}

TEST(Simulate, MovesTheBytesThatTheFormulasSay) {
  for (const char* layout : {"tsp=4", "tp=4", "sp=4", "zero3=4", "tp=2,sp=2", "dp=2,tsp=4", "dp=4,tsp=2", "tp=2,tsp=2"}) {
    const theory::MeshSetting of = setting(layout);
    std::array<std::uint64_t, kPurposes> expected{};
    for (const theory::Flow& flow : theory::step_flows(of.setting, of.layout))
      expected[static_cast<std::size_t>(flow.purpose)] += flow.bytes;
    const theory::Simulated played = theory::simulate(of, machine(), {.fold = false});
    for (std::size_t purpose = 0; purpose < kPurposes; ++purpose) {
      const auto which = static_cast<Purpose>(purpose);
      if (which == Purpose::other || which == Purpose::embedding) continue;  // forms of the step's end; tokens' ids
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
    EXPECT_EQ(played.memory_peaks.total, theory::peaks(of, played.fullest, {}, options).total) << layout;
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
    EXPECT_NEAR(folded.seconds, whole.seconds, 0.01 * whole.seconds) << layout;
    EXPECT_EQ(folded.flops, whole.flops) << layout;
    EXPECT_EQ(folded.received[static_cast<std::size_t>(Purpose::weights)],
              whole.received[static_cast<std::size_t>(Purpose::weights)]);
  }
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

TEST(Simulate, AMachineWithoutFlopsForTheTypeIsRefused) {
  theory::Machine lacking = machine();
  lacking.flops_bf16.reset();
  EXPECT_NE(refused_text([&] { theory::simulate(setting("tsp=4"), lacking, {}); }).find("doesn't state flops_per_s for bf16"),
            std::string::npos);
}

}  // namespace
}  // namespace tsprun::detail::test::simulate_test
