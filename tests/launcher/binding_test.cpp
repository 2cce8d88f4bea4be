// Where ranks are pinned, on machines that hwloc imagines.
#include "launcher/binding.h"

#include <gtest/gtest.h>

#include <sched.h>
#include <string>
#include <vector>

namespace tsprun::detail::launcher::binding_test {
namespace {

using Cpus = std::vector<std::vector<int>>;

std::vector<int> list(const cpu_set_t& set) {
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

Cpus places(int ranks, int threads, const std::string& machine, const std::string& allowed = {}) {
  Cpus places;
  for (const cpu_set_t& set : cores_of_ranks(ranks, threads, machine, allowed)) places.push_back(list(set));
  return places;
}

// Two sockets with a NUMA node of four cores each; a core's two hardware threads are c and c + 8, as Linux numbers them.
constexpr const char* kTwoSockets = "node:2 core:4 pu:2(indexes=0,8,1,9,2,10,3,11,4,12,5,13,6,14,7,15)";

TEST(CoresOfRanks, AreWholeCoresBeforeHardwareThreads) {
  EXPECT_EQ(places(8, 1, kTwoSockets), (Cpus{{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}}));
  EXPECT_EQ(places(2, 4, kTwoSockets), (Cpus{{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}}));
}

TEST(CoresOfRanks, SpreadOverNumaNodesAndKeepNeighboursTogether) {
  EXPECT_EQ(places(2, 1, kTwoSockets), (Cpus{{0, 8}, {4, 12}}));
  EXPECT_EQ(places(4, 1, kTwoSockets), (Cpus{{0, 8}, {2, 10}, {4, 12}, {6, 14}}));
  EXPECT_EQ(places(3, 2, kTwoSockets), (Cpus{{0, 1, 8, 9}, {2, 3, 10, 11}, {5, 6, 13, 14}}));
}

TEST(CoresOfRanks, AreHardwareThreadsIfCoresDontSuffice) {
  EXPECT_EQ(places(16, 1, kTwoSockets).front(), (std::vector<int>{0}));
  EXPECT_EQ(places(16, 1, kTwoSockets)[1], (std::vector<int>{8}));
  EXPECT_EQ(places(8, 2, kTwoSockets), (Cpus{{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}}));
}

TEST(CoresOfRanks, AreSharedByRanksThatOutnumberThem) {
  EXPECT_EQ(places(5, 1, "core:2 pu:1"), (Cpus{{0}, {1}, {0}, {1}, {0}}));
  EXPECT_EQ(places(3, 2, "core:5 pu:1"), (Cpus{{0, 1}, {2, 3}, {0, 1}}));
  EXPECT_EQ(places(2, 9, "core:2 pu:1"), (Cpus{{0, 1}, {0, 1}}));
}

TEST(CoresOfRanks, LieWithinWhatIsAllowed) {
  EXPECT_EQ(places(2, 1, kTwoSockets, "1,3,5,9"), (Cpus{{1, 9}, {3}}));
  EXPECT_EQ(places(4, 1, kTwoSockets, "1,3,5,9"), (Cpus{{1}, {9}, {3}, {5}}));
}

TEST(CoresOfRanks, LieWithinThisProcesssAffinity) {
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(list(mask).back()), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  const std::vector<cpu_set_t> sets = cores_of_ranks(2, 1);
  ASSERT_EQ(::sched_setaffinity(0, sizeof mask, &mask), 0);
  ASSERT_EQ(sets.size(), 2U);
  for (const cpu_set_t& set : sets) EXPECT_EQ(list(set), list(one));
}

TEST(CoresOfRanks, AreNoneOfAMachineThatCantBe) { EXPECT_TRUE(cores_of_ranks(2, 1, "no machine").empty()); }

}  // namespace
}  // namespace tsprun::detail::launcher::binding_test
