// Ten thousand operations of random kind, size, form, stream and group in one run, many of them under way at once. All ranks draw
// the same calls from the seed; when each rank waits for its posted ones is its own affair.

#include "tests/support/calls.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace tsprun::detail::test::collectives_random_test {
namespace {

/// Ordered lists of ranks: the world, its reverse, overlapping and disjoint parts.
std::vector<std::vector<int>> member_lists(int ranks, std::uint64_t seed) {
  std::vector<int> all;
  for (int r = 0; r < ranks; ++r) all.push_back(r);
  std::vector<std::vector<int>> lists = {all, {all.rbegin(), all.rend()}};
  for (std::uint64_t i = 0; i < 6; ++i) {
    std::vector<int> members = all;
    // Fisher-Yates with numbers of our own, so that the lists don't depend on the standard library.
    for (std::size_t j = members.size() - 1; j > 0; --j) std::swap(members[j], members[mix(seed, i, j) % (j + 1)]);
    members.resize(1 + mix(seed, i) % members.size());
    lists.push_back(members);
  }
  return lists;
}

void random_operations(int ranks, std::uint64_t operations, std::uint64_t seed) {
  const std::vector<std::vector<int>> lists = member_lists(ranks, seed);
  run_ranks(ranks, [&](Context& context) {
    std::vector<std::optional<Communicator>> groups;
    for (const std::vector<int>& members : lists) {
      const bool member = std::find(members.begin(), members.end(), context.rank()) != members.end();
      groups.push_back(member ? std::optional(context.world().subgroup(members)) : std::nullopt);
    }
    std::deque<std::unique_ptr<Running>> pending;
    for (std::uint64_t i = 0; i < operations; ++i) {
      const std::size_t which = mix(seed, i, 1) % lists.size();
      if (!groups[which]) continue;
      const Call call = random_call(mix(seed, i), static_cast<int>(lists[which].size()), 12'000);
      auto running = start(context, *groups[which], call);
      if (!call.posted) {
        running->finish();
        continue;
      }
      pending.push_back(std::move(running));
      const std::size_t patience = 1 + mix(seed, i, 100 + static_cast<std::uint64_t>(context.rank())) % 12;
      while (pending.size() > patience) {
        pending.front()->finish();
        pending.pop_front();
      }
    }
    for (const auto& running : pending) running->finish();
  });
}

TEST(RandomOperations, TenThousandOnFiveRanks) { random_operations(5, 10'000, 2024); }
TEST(RandomOperations, ThousandOnTwoRanks) { random_operations(2, 1'000, 7); }
TEST(RandomOperations, ThousandOnNineRanks) { random_operations(9, 1'000, 8); }

}  // namespace
}  // namespace tsprun::detail::test::collectives_random_test
