// Groups: sub-groups in any order, split by colour and key, and many of them at work at once.

#include "tests/support/calls.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace tsprun::detail::test::collectives_groups_test {
namespace {

/// Every operation once, of a few thousand elements, on a group.
void use(Context& context, Communicator& group, std::uint64_t seed) {
  for (Op op : kCallable) {
    for (std::size_t count : {std::size_t{7}, std::size_t{3001}}) {
      Call call;
      call.op = op;
      call.counts.assign(static_cast<std::size_t>(group.size()), count);
      call.root = group.size() - 1;
      call.seed = mix(seed, static_cast<std::uint64_t>(op), count);
      run(context, group, call);
    }
  }
}

TEST(Groups, WorldIsAllRanksInOrder) {
  run_ranks(3, [](Context& context) {
    EXPECT_EQ(context.size(), 3);
    EXPECT_EQ(context.local_size(), 3);
    EXPECT_EQ(context.local_rank(), context.rank());
    EXPECT_EQ(context.world().size(), 3);
    EXPECT_EQ(context.world().rank(), context.rank());
    for (int r = 0; r < 3; ++r) EXPECT_EQ(context.world().world_rank(r), r);
  });
}

TEST(Groups, SubgroupsHaveTheirOwnOrder) {
  run_ranks(5, [](Context& context) {
    const std::vector<int> members = {4, 0, 3};
    const auto place = std::find(members.begin(), members.end(), context.rank());
    if (place != members.end()) {
      Communicator group = context.world().subgroup(members);
      EXPECT_EQ(group.size(), 3);
      EXPECT_EQ(group.rank(), place - members.begin());
      for (int r = 0; r < 3; ++r) EXPECT_EQ(group.world_rank(r), members[static_cast<std::size_t>(r)]);
      use(context, group, 1);
      // A group of a group: members are named by their rank in it.
      const std::vector<int> last_two = {2, 1};
      if (group.rank() > 0) {
        Communicator pair = group.subgroup(last_two);
        EXPECT_EQ(pair.world_rank(0), 3);
        EXPECT_EQ(pair.world_rank(1), 0);
        use(context, pair, 2);
      }
    }
    use(context, context.world(), 3);
  });
}

TEST(Groups, AGroupOfOneNeedsNobody) {
  run_ranks(2, [](Context& context) {
    const std::vector<int> me = {context.rank()};
    Communicator alone = context.world().subgroup(me);
    EXPECT_EQ(alone.size(), 1);
    EXPECT_EQ(alone.rank(), 0);
    for (int i = 0; i < 3; ++i) use(context, alone, 10 + static_cast<std::uint64_t>(i));
  });
}

TEST(Groups, SplitOrdersByKeyThenRank) {
  constexpr int kRanks = 7;
  run_ranks(kRanks, [](Context& context) {
    const int colour = context.rank() % 3;
    const int key = -(context.rank() / 3 % 2);
    Communicator group = context.world().split(colour, key);
    std::vector<int> expected;
    for (int wanted_key : {-1, 0}) {
      for (int r = 0; r < kRanks; ++r) {
        if (r % 3 == colour && -(r / 3 % 2) == wanted_key) expected.push_back(r);
      }
    }
    EXPECT_EQ(std::vector<int>(group.members().begin(), group.members().end()), expected);
    EXPECT_EQ(group.world_rank(group.rank()), context.rank());
    use(context, group, 20 + static_cast<std::uint64_t>(colour));
  });
}

TEST(Groups, OfAMeshWorkSideBySide) {
  static constexpr int kRows = 2;
  static constexpr int kColumns = 3;
  run_ranks(kRows * kColumns, [](Context& context) {
    Communicator row = context.world().split(context.rank() / kColumns, 0);
    Communicator column = context.world().split(context.rank() % kColumns, 0);
    EXPECT_EQ(row.size(), kColumns);
    EXPECT_EQ(column.size(), kRows);
    std::vector<std::unique_ptr<Running>> running;
    for (std::uint64_t i = 0; i < 20; ++i) {
      for (Communicator* group : {&row, &column}) {
        Call call;
        call.op = Op::all_gather;
        call.counts = {20'000};
        call.posted = true;
        call.options.stream = group == &row ? Stream::weights : Stream::kv;
        call.seed = i;
        running.push_back(start(context, *group, call));
      }
    }
    for (const auto& call : running) call->finish();
  });
}

TEST(Groups, BadMembersAreRefused) {
  run_ranks(2, [](Context& context) {
    auto refuses = [&](std::vector<int> members) {
      try {
        context.world().subgroup(members);
        ADD_FAILURE() << "a bad list was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.cause(), Cause::refused) << error.what();
      }
    };
    refuses({});
    refuses({0, 1, 1});
    refuses({0, 1, 2});
    refuses({-1, 0, 1});
    refuses({1 - context.rank()});
  });
}

// The algorithms for small groups would exchange 80² messages here.
TEST(LargeGroups, SumAndMeetByWayOfOneRank) {
  constexpr int kRanks = 80;
  run_ranks(kRanks, [](Context& context) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> data(1000);
      for (std::size_t i = 0; i < data.size(); ++i)
        data[i] = static_cast<float>(context.rank() + round) * static_cast<float>(i % 7);
      context.world().all_reduce(Buffer(std::span<float>(data)), Reduction::sum);
      const int sum = kRanks * (kRanks - 1) / 2 + kRanks * round;
      for (std::size_t i = 0; i < data.size(); ++i) {
        ASSERT_EQ(data[i], static_cast<float>(sum) * static_cast<float>(i % 7));
      }
      context.world().barrier();
    }
  });
}

}  // namespace
}  // namespace tsprun::detail::test::collectives_groups_test
