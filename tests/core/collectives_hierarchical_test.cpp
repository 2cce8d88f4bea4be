// Collectives on groups that span pretended nodes: shared memory within a node, tcp between nodes, ranks as threads. What a plain
// loop over the definition gives is the oracle.

#include "core/collectives/choice.h"
#include "tests/support/calls.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <vector>

namespace tsprun::detail::test::collectives_hierarchical_test {
namespace {

struct Shape {
  int ranks;
  int nodes;
};

/// Grids, nodes of unequal size, one rank a node, one node.
constexpr Shape kShapes[] = {{1, 1}, {2, 2}, {3, 1}, {4, 2}, {5, 3}, {6, 3}, {8, 2}, {8, 4}, {9, 3}};

std::string name_of(const testing::TestParamInfo<Shape>& shape) {
  return std::to_string(shape.param.ranks) + "RanksOn" + std::to_string(shape.param.nodes);
}

/// Algorithm that reductions are asked for: hierarchical where the group has a hierarchy.
CallOptions hierarchical_if_possible(const Communicator& group, Op op) {
  return {.algorithm = group.why_not_hierarchical(op).empty() ? Algorithm::hierarchical : Algorithm::automatic};
}

class AcrossNodes : public testing::TestWithParam<Shape> {
 protected:
  int ranks() const { return GetParam().ranks; }
  RankOptions options() const { return {.heap_bytes = 64 << 20, .nodes = GetParam().nodes}; }
};
INSTANTIATE_TEST_SUITE_P(Shapes, AcrossNodes, testing::ValuesIn(kShapes), name_of);

/// Elements of the longest buffers: of several pieces in one dtype, else short, since every element is compared.
std::size_t largest(DType dtype) { return dtype == DType::f64 ? 150'000 : 5'000; }

/// The world, backwards, every other rank, and all but the first: groups that begin and end within nodes.
std::vector<std::vector<int>> groups_of(int ranks) {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int>> lists = {all, {all.rbegin(), all.rend()}, {all.begin() + (ranks > 1 ? 1 : 0), all.end()}};
  std::vector<int> some;
  for (int r = 0; r < ranks; r += 2) some.push_back(r);
  for (int r = ranks - 1 - ranks % 2; r > 0; r -= 2) some.push_back(r);
  lists.push_back(some);
  return lists;
}

// Reductions among them: without --reassociate they give the canonical bits, whatever the nodes.
TEST_P(AcrossNodes, RandomOperationsGiveWhatTheirDefinitionsSay) {
  const std::vector<std::vector<int>> lists = groups_of(ranks());
  run_ranks(
      ranks(),
      [&](Context& context) {
        for (std::size_t which = 0; which < lists.size(); ++which) {
          if (std::find(lists[which].begin(), lists[which].end(), context.rank()) == lists[which].end()) continue;
          Communicator group = context.world().subgroup(lists[which]);
          for (std::uint64_t i = 0; i < 60; ++i) run(context, group, random_call(mix(77, which, i), group.size(), 30'000));
        }
      },
      options());
}

TEST_P(AcrossNodes, GathersAndBroadcastsOfSeveralPiecesArriveWhole) {
  run_ranks(
      ranks(),
      [&](Context& context) {
        for (const DType dtype : kDTypes) {
          for (const Where where : {Where::heap, Where::plain}) {
            for (const bool scattered : {false, true}) {
              Call call;
              call.op = Op::all_gather;
              call.dtype = dtype;
              call.where = where;
              call.uneven = true;
              call.scattered = scattered;
              call.in_place = dtype == DType::f32;
              call.options.algorithm = Algorithm::hierarchical;
              for (int r = 0; r < ranks(); ++r)
                call.counts.push_back(r % 3 == 1 ? 0 : 1 + mix(5, static_cast<std::uint64_t>(r)) % largest(dtype));
              call.seed = mix(11, static_cast<std::uint64_t>(dtype));
              run(context, context.world(), call);
            }
            Call call;
            call.op = Op::broadcast;
            call.dtype = dtype;
            call.where = where;
            call.options.algorithm = Algorithm::hierarchical;
            for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{5}, 2 * largest(dtype) + 1}) {
              call.counts.assign(static_cast<std::size_t>(ranks()), count);
              call.root = static_cast<int>(count % static_cast<std::size_t>(ranks()));
              run(context, context.world(), call);
            }
          }
        }
      },
      options());
}

/// Small whole numbers, whose sums are exact in every dtype and every order.
template <Element T>
T number(int rank, std::size_t index) {
  return static_cast<T>(static_cast<float>(mix(static_cast<std::uint64_t>(rank), index) % 17) - 8.0F);
}

template <Element T>
T expected_number(int ranks, std::size_t index, Reduction reduction) {
  float result = static_cast<float>(number<T>(0, index));
  for (int r = 1; r < ranks; ++r) result = combine(result, static_cast<float>(number<T>(r, index)), reduction);
  return static_cast<T>(result);
}

template <Element T>
void reduce_numbers(Context& context, std::size_t count, Reduction reduction, bool in_heap, bool in_place) {
  Communicator& world = context.world();
  const int ranks = world.size();
  HeapBlock block;
  std::vector<T> plain(count);
  if (in_heap) block = context.allocate_elements<T>(count, "numbers");
  const std::span<T> data = in_heap ? block.as<T>() : std::span<T>(plain);
  const auto fill_numbers = [&] {
    for (std::size_t i = 0; i < count; ++i) data[i] = number<T>(context.rank(), i);
  };
  const CallOptions options = hierarchical_if_possible(world, Op::all_reduce);
  fill_numbers();
  std::vector<T> sums(count);
  const std::span<T> whole = in_place ? data : std::span<T>(sums);
  world.all_reduce(ConstBuffer(std::span<const T>(data)), Buffer(whole), reduction, options);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_TRUE(same_bits(whole[i], expected_number<T>(ranks, i, reduction))) << "all_reduce, " << i << " of " << count;
  }
  fill_numbers();
  std::vector<std::size_t> counts;  // uneven, some empty
  std::size_t left = count;
  for (int r = 0; r < ranks; ++r) {
    counts.push_back(r == ranks - 1 ? left : std::min(left, mix(3, static_cast<std::uint64_t>(r)) % (1 + count / 2)));
    left -= counts.back();
  }
  const auto me = static_cast<std::size_t>(context.rank());
  const std::size_t first = std::accumulate(counts.begin(), counts.begin() + context.rank(), std::size_t{0});
  const std::span<T> part = in_place ? data.subspan(first, counts[me]) : std::span<T>(sums).first(counts[me]);
  world.reduce_scatter_v(std::span<const T>(data), part, counts, reduction, options);
  for (std::size_t i = 0; i < part.size(); ++i) {
    ASSERT_TRUE(same_bits(part[i], expected_number<T>(ranks, first + i, reduction)))
        << "reduce_scatter, " << i << " of " << count;
  }
}

TEST_P(AcrossNodes, ReassociatedReductionsAreExactWhereSumsAre) {
  RankOptions options = this->options();
  options.reassociate = true;
  run_ranks(
      ranks(),
      [&](Context& context) {
        for (const std::size_t count :
             {std::size_t{0}, std::size_t{1}, std::size_t{13}, std::size_t{5'003}, std::size_t{140'001}}) {
          for (const bool in_place : {false, true}) {
            reduce_numbers<float>(context, count, Reduction::sum, true, in_place);
            if (count > 10'000) continue;
            reduce_numbers<double>(context, count, Reduction::max, false, in_place);
            reduce_numbers<bf16>(context, count, Reduction::sum, false, in_place);
            reduce_numbers<float>(context, count, Reduction::min, false, in_place);
          }
        }
        EXPECT_EQ(context.world().why_not_hierarchical(Op::all_reduce), context.world().why_not_hierarchical(Op::all_gather));
      },
      options);
}

// Two nodes of two: a node's average is halved once more between the nodes, and integers add up.
TEST(HierarchicalReductions, AveragesAreOfAllRanksAndIntegersWrapAround) {
  run_ranks(4,
            [](Context& context) {
              const CallOptions options{.algorithm = Algorithm::hierarchical};
              std::vector<float> numbers(1000, static_cast<float>(context.rank() + 1));
              context.world().all_reduce(Buffer(std::span(numbers)), Reduction::average, options);
              std::vector<std::int8_t> wide(1000, static_cast<std::int8_t>(100 + context.rank()));
              context.world().all_reduce(Buffer(std::span(wide)), Reduction::sum, options);
              for (const float each : numbers) ASSERT_EQ(each, 2.5F);
              for (const std::int8_t each : wide) ASSERT_EQ(each, 406 - 512);
            },
            {.heap_bytes = 1 << 20, .nodes = 2, .reassociate = true});
}

// Whoever leaves a barrier knows that all have come.
TEST_P(AcrossNodes, NobodyLeavesABarrierBeforeTheLastHasCome) {
  std::atomic<int> came = 0;
  run_ranks(
      ranks(),
      [&](Context& context) {
        for (int i = 1; i <= 50; ++i) {
          ++came;
          context.world().barrier(hierarchical_if_possible(context.world(), Op::barrier));
          ASSERT_GE(came.load(), i * ranks());
          context.world().barrier();
        }
      },
      options());
}

TEST(HierarchicalTraffic, AllRanksTogetherReceiveWhatTheDefinitionsSay) {
  constexpr int kRanks = 6;
  constexpr std::size_t kCount = 1'000'002;
  for (const int nodes : {2, 3}) {
    std::atomic<std::uint64_t> gathered = 0;
    std::atomic<std::uint64_t> broadcast = 0;
    std::atomic<std::uint64_t> reduced = 0;
    std::atomic<std::uint64_t> scattered = 0;
    run_ranks(kRanks,
              [&](Context& context) {
                HeapBlock block = context.allocate_elements<float>(kCount, "data");
                HeapBlock other = context.allocate_elements<float>(kCount, "more data");
                const std::span<float> data = block.as<float>();
                const std::span<float> more = other.as<float>();
                const std::size_t part = kCount / kRanks;
                Communicator& world = context.world();
                const auto run_as = [&](Purpose purpose) {
                  return CallOptions{.purpose = purpose, .algorithm = Algorithm::hierarchical};
                };
                world.all_gather(std::span<const float>(more).first(part), data, run_as(Purpose::kv));
                world.broadcast(data, 4, run_as(Purpose::weights));
                world.all_reduce(std::span<const float>(more), data, Reduction::sum, run_as(Purpose::gradients));
                world.reduce_scatter(std::span<const float>(more), data.first(part), Reduction::sum,
                                     run_as(Purpose::activations));
                const TrafficCounters traffic = context.traffic();
                gathered += traffic.received[static_cast<std::size_t>(Purpose::kv)];
                broadcast += traffic.received[static_cast<std::size_t>(Purpose::weights)];
                reduced += traffic.received[static_cast<std::size_t>(Purpose::gradients)];
                scattered += traffic.received[static_cast<std::size_t>(Purpose::activations)];
              },
              {.heap_bytes = 64 << 20, .nodes = nodes, .reassociate = true});
    const std::uint64_t all = kCount * sizeof(float) * (kRanks - 1);
    EXPECT_EQ(gathered, all) << nodes;
    EXPECT_EQ(broadcast, all) << nodes;
    EXPECT_EQ(scattered, all) << nodes;
    EXPECT_EQ(reduced, 2 * all) << nodes;
  }
}

TEST(Hierarchy, IsRefusedWithAReason) {
  const auto reason = [](Shape shape, Op op, bool reassociate) {
    std::string text;
    run_ranks(shape.ranks,
              [&](Context& context) {
                const std::string why = context.world().why_not_hierarchical(op);
                if (context.rank() == 0) text = why;
              },
              {.heap_bytes = 1 << 20, .nodes = shape.nodes, .reassociate = reassociate});
    return text;
  };
  EXPECT_EQ(reason({4, 2}, Op::all_gather, false), "");
  EXPECT_EQ(reason({4, 2}, Op::all_reduce, true), "");
  EXPECT_NE(reason({4, 2}, Op::all_reduce, false).find("--reassociate"), std::string::npos);
  EXPECT_NE(reason({4, 1}, Op::all_gather, false).find("one node"), std::string::npos);
  EXPECT_NE(reason({5, 2}, Op::all_gather, false).find("node 0 holds 3 of the group's ranks, node 1 holds 2"), std::string::npos);
  EXPECT_NE(reason({3, 3}, Op::broadcast, false).find("one rank"), std::string::npos);
  EXPECT_NE(reason({4, 2}, Op::all_to_all, true).find("all_to_all"), std::string::npos);
}

// A call, or an override of the choice table, that asks for what can't be done is refused, not carried out in another way.
TEST(Hierarchy, ThatIsImpossibleIsRefusedByCallsAndByTheTable) {
  const auto expect_refused = [](const std::vector<RankOutcome>& outcomes, const std::string& words) {
    for (const RankOutcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.failed) << describe(outcomes);
      EXPECT_EQ(outcome.cause, Cause::refused) << describe(outcomes);
      EXPECT_NE(outcome.message.find(words), std::string::npos) << describe(outcomes);
    }
  };
  const auto called = [](Op op, Algorithm algorithm, int nodes) {
    return try_ranks(4,
                     [op, algorithm](Context& context) {
                       std::vector<float> whole(8);
                       std::vector<float> part(2);
                       const CallOptions options{.algorithm = algorithm};
                       Communicator& world = context.world();
                       if (op == Op::all_reduce) world.all_reduce(std::span(whole), Reduction::sum, options);
                       if (op == Op::all_gather) world.all_gather(std::span<const float>(part), std::span(whole), options);
                       if (op == Op::barrier) world.barrier(options);
                     },
                     {.heap_bytes = 16 << 20, .timeout_ns = 5'000'000'000, .nodes = nodes});
  };
  expect_refused(called(Op::all_gather, Algorithm::hierarchical, 1), "all_gather: it can't be hierarchical: all ranks");
  expect_refused(called(Op::all_reduce, Algorithm::hierarchical, 2), "--reassociate");
  expect_refused(called(Op::barrier, Algorithm::ring, 1),
                 "barrier: there is no algorithm ring for it; " + algorithm_names(Op::barrier));
  const auto begun = [](const std::string& algorithms, int nodes) {
    return try_ranks(4, [](Context& context) { context.world().barrier(); },
                     {.heap_bytes = 16 << 20, .timeout_ns = 5'000'000'000, .algorithms = algorithms, .nodes = nodes});
  };
  expect_refused(begun("all_reduce=ring,all_gather=hierarchical", 1), "all_gather=hierarchical: all ranks of the group sit on");
  expect_refused(begun("all_reduce<1M=hierarchical", 2), "all_reduce=hierarchical: sums would be added in another order");
  for (const RankOutcome& outcome : begun("all_gather=hierarchical", 2)) EXPECT_FALSE(outcome.failed) << outcome.message;
}

TEST(Hierarchy, FindsCallsThatDiffer) {
  for (const int odd : {0, 3}) {
    const std::vector<RankOutcome> outcomes =
        try_ranks(4,
                  [&](Context& context) {
                    std::vector<float> part(1000);
                    std::vector<float> whole(4 * part.size());
                    const CallOptions options{.algorithm = Algorithm::hierarchical};
                    if (context.rank() == odd) context.world().broadcast(std::span(whole), 1, options);
                    else context.world().all_gather(std::span<const float>(part), std::span(whole), options);
                    context.world().barrier();
                  },
                  {.heap_bytes = 16 << 20, .timeout_ns = 5'000'000'000, .nodes = 2});
    for (const RankOutcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.failed) << describe(outcomes);
      EXPECT_EQ(outcome.cause, Cause::mismatch) << describe(outcomes);
      EXPECT_NE(outcome.message.find("all_gather"), std::string::npos) << describe(outcomes);
      EXPECT_NE(outcome.message.find("broadcast"), std::string::npos) << describe(outcomes);
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::collectives_hierarchical_test
