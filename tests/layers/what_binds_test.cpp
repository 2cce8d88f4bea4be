// What binds a step: which resource is named, and which aren't tried.
#include "layers/theory/what_binds.h"

#include "layers/theory/simulate.h"
#include "tests/layers/simulate_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tsprun::detail::test::what_binds_test {
namespace {

using simulate_support::machine;
using simulate_support::setting;

TEST(WhatBinds, IsWhatWouldShortenTheStepMost) {
  const theory::MeshSetting of = setting("tsp=8");
  const auto binds = [&](const theory::Machine& on) { return theory::simulate(of, on, {.binds = true}).binds; };
  theory::Machine fast = machine();
  fast.launch_seconds = 0;
  for (double theory::Machine::*rate :
       {&theory::Machine::memory_bytes_per_s, &theory::Machine::within_bytes_per_s, &theory::Machine::nic_bytes_per_s}) {
    fast.*rate = 1e18;
  }
  fast.flops_bf16 = fast.flops_f32 = 1e20;
  fast.within_latency = fast.nic_latency = 0;
  theory::Machine slow = fast;
  slow.flops_bf16 = slow.flops_f32 = 1e9;
  EXPECT_EQ(binds(slow), "compute");
  slow = fast;
  slow.memory_bytes_per_s = 1e8;
  EXPECT_EQ(binds(slow), "memory");
  slow = fast;
  slow.within_bytes_per_s = 1e6;
  EXPECT_EQ(binds(slow), "links within nodes");
  slow = fast;
  slow.nic_bytes_per_s = 1e6;
  EXPECT_EQ(binds(slow), "NICs");
  slow.nic_latency = 1e-6;
  EXPECT_EQ(binds(slow), "NICs");
  slow = fast;
  slow.nic_latency = 1;
  EXPECT_EQ(binds(slow), "latency of NICs");
  slow = fast;
  slow.within_latency = 1;
  EXPECT_EQ(binds(slow), "latency of links within nodes");
  slow = fast;
  slow.launch_seconds = 1e-3;
  EXPECT_EQ(binds(slow), "launches of kernels");
  slow = fast;
  slow.spine = theory::Spine{.nodes_per_leaf = 1, .leaf_bytes_per_s = 1e6};
  EXPECT_EQ(binds(slow), "leaf and spine switches");
}

TEST(WhatBinds, KnowsOfASlowRank) {
  // Links cost more than a usual rank's kernels, and less than the slow one's.
  const theory::MeshSetting of = setting("tsp=4", 4, 1024);
  theory::Machine on = machine();
  on.launch_seconds = 0;
  on.memory_bytes_per_s = 1e18;
  on.within_bytes_per_s /= 4;
  const auto binds = [&](std::vector<theory::SlowRank> slow) {
    return theory::simulate(of, on, {.fold = false, .binds = true, .slow_ranks = std::move(slow)}).binds;
  };
  EXPECT_EQ(binds({}), "links within nodes");
  EXPECT_EQ(binds({{.rank = 3, .factor = 1000}}), "compute");
}

// Also where plays are left out: played without each resource, none shortens the step by a twentieth more than the one that is
// named.
TEST(WhatBinds, ShortensTheStepAboutAsMuchAsAnyResource) {
  for (const auto& [layout, layers, sequence] : {std::tuple("tsp=8", 2U, 1024U), std::tuple("tp=8", 2U, 4096U),
                                                 std::tuple("dp=2,tsp=8", 64U, 512U), std::tuple("sp=8", 64U, 4096U)}) {
    for (const double links : {0.25, 1.0, 4.0}) {
      theory::MeshSetting of = setting(layout, 8, sequence);
      of.setting.model.layers = layers;
      theory::Machine on = machine();
      on.within_bytes_per_s *= links;
      on.nic_bytes_per_s *= links;
      const theory::Simulated step = theory::simulate(of, on, {.binds = true});
      double most = 0;
      double named = 0;
      for (const theory::WhatIf& each : theory::what_ifs(on, 0)) {
        const double gain = step.seconds - theory::simulate(of, each.without, {}).seconds;
        most = std::max(most, gain);
        if (step.binds.ends_with(each.resource)) named = gain;
      }
      EXPECT_GE(1.06 * named, most) << layout << ", " << links << ": " << step.binds;
    }
  }
}

TEST(WhatBinds, IsntSoughtAmongWhatCanHardlyGainMore) {
  std::vector<theory::WhatIf> all;
  const auto add = [&](const char* resource, double least) {
    all.push_back({.resource = resource, .without = machine(), .least = least});
  };
  add("one", 5);
  add("two", 2);
  add("three", 5.8);
  add("four", 6.2);
  std::vector<std::string> played;
  const auto seconds = [&](const theory::WhatIf& without) {
    played.emplace_back(without.resource);
    return without.resource == "one" ? 6.0 : without.resource == "two" ? 9.0 : 8.0;
  };
  const auto none = [](const theory::WhatIf&) { return 0.0; };
  EXPECT_EQ(theory::what_binds(all, 10, seconds, none), "one");
  EXPECT_EQ(played, (std::vector<std::string>{"two", "one"}));  // the third could gain 4.2, the second gains 4
  played.clear();
  EXPECT_EQ(theory::what_binds(
                all, 10, [&](const theory::WhatIf& without) { return seconds(without), 10.0; }, none),
            "");
  EXPECT_EQ(played.size(), 4U);
}

TEST(WhatBinds, TakesAtLeastAsLongAsTheBusiestLinks) {
  const sim::FabricShape fabric{
      .ranks = 2, .ranks_per_node = 1, .within_bytes_per_s = 10, .nics_per_node = 1, .nic_bytes_per_s = 100};
  theory::Simulated step;
  step.seconds = 8;
  step.links = {{.kind = "NIC out", .busy = 0.5, .bytes = 400}, {.kind = "port into the GPU", .busy = 0.25, .bytes = 20}};
  EXPECT_EQ(theory::busiest_seconds(step, fabric, fabric), 4);
  sim::FabricShape other = fabric;
  other.nic_bytes_per_s = 400;
  EXPECT_EQ(theory::busiest_seconds(step, fabric, other), 2);
  other.nic_bytes_per_s = std::numeric_limits<double>::infinity();
  other.within_bytes_per_s = 20;
  EXPECT_EQ(theory::busiest_seconds(step, fabric, other), 1);
  step.links = {{.kind = "spine", .busy = 0.5, .bytes = 1}};
  sim::FabricShape with_spine = fabric;
  with_spine.nodes_per_leaf = 1;
  with_spine.leaf_bytes_per_s = with_spine.spine_bytes_per_s = 50;
  EXPECT_EQ(theory::busiest_seconds(step, with_spine, with_spine), 4);
  EXPECT_EQ(theory::busiest_seconds(step, with_spine, fabric), 0);  // which has none
}

}  // namespace
}  // namespace tsprun::detail::test::what_binds_test
