// Every collective against plain loops: 1 to 9 ranks, all dtypes and reductions, every algorithm, even and uneven and zero
// counts, in and out of place, heap and plain memory, blocking and posted.

#include "tests/support/calls.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

namespace tsprun::detail::test::collectives_values_test {
namespace {

using Counts = std::vector<std::size_t>;

/// Count tables that a group of n ranks shall survive: nothing at all, one element, single holes, sizes around the ranks' number
/// and around what fits a message's header line, a lane's inline payload and staging memory.
std::vector<Counts> count_tables(int n, std::uint64_t seed) {
  const std::size_t ranks = static_cast<std::size_t>(n);
  std::vector<Counts> tables = {Counts(ranks, 0), Counts(ranks, 1), Counts(ranks, ranks + 1), Counts(ranks, 1021)};
  for (std::size_t largest : {std::size_t{3}, std::size_t{40}, std::size_t{3000}, std::size_t{30000}}) {
    Counts random;
    for (std::size_t r = 0; r < ranks; ++r) random.push_back(mix(seed, largest, r) % (largest + 1));
    random[mix(seed, largest) % ranks] = 0;
    random[0] = largest;
    tables.push_back(random);
  }
  return tables;
}

class CollectiveValues : public testing::TestWithParam<std::tuple<Op, int>> {
 protected:
  Op op() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }

  /// All calls that this operation has, over one table of counts at a time.
  std::vector<Call> calls() const {
    std::vector<Call> result;
    std::uint64_t seed = mix(static_cast<std::uint64_t>(op()), static_cast<std::uint64_t>(ranks()));
    for (const Counts& counts : count_tables(ranks(), seed)) {
      for (DType dtype : kDTypes) {
        if (reduces(op()) && dtype == DType::byte) continue;
        for (Algorithm algorithm : algorithms_of(op())) {
          for (bool uneven : {false, true}) {
            if (uneven && !has_uneven_form(op())) continue;
            Call call;
            call.op = op();
            call.dtype = dtype;
            call.counts = counts;
            call.uneven = uneven;
            call.options.algorithm = algorithm;
            call.seed = ++seed;
            // The remaining choices are independent of each other: drawn, so that all combinations come up over the tables.
            call.scattered = uneven && has_scattered_form(op()) && mix(seed, 17) % 2 == 0;
            if (const auto reductions = reductions_of(dtype); !reductions.empty())
              call.reduction = reductions[mix(seed, 11) % reductions.size()];
            call.root = static_cast<int>(mix(seed, 12) % static_cast<std::uint64_t>(ranks()));
            call.in_place = has_in_place_form(op()) && mix(seed, 13) % 2 == 0;
            call.where = mix(seed, 14) % 2 == 0 ? Where::heap : Where::plain;
            call.posted = mix(seed, 15) % 2 == 0;
            call.options.stream = static_cast<Stream>(mix(seed, 16) % kStreams);
            result.push_back(call);
          }
        }
      }
    }
    return result;
  }
};

TEST_P(CollectiveValues, MatchPlainLoops) {
  const std::vector<Call> all = calls();
  run_ranks(ranks(), [&](Context& context) {
    for (const Call& call : all) run(context, context.world(), call);
  });
}

std::string case_name(const testing::TestParamInfo<std::tuple<Op, int>>& info) {
  return std::string(name(std::get<0>(info.param))) + "_" + std::to_string(std::get<1>(info.param)) + "_ranks";
}

INSTANTIATE_TEST_SUITE_P(All, CollectiveValues, testing::Combine(testing::ValuesIn(kCallable), testing::Range(1, 10)), case_name);

// The tables above draw some choices; here all forms of a small and of a large call are spelled out.
TEST(CollectiveForms, AllCombinationsOfMemoryPlaceAndPosting) {
  std::vector<Call> all;
  std::uint64_t seed = 77;
  for (Op op : kCallable) {
    for (std::size_t count : {std::size_t{13}, std::size_t{1500}, std::size_t{50'000}}) {
      for (Reduction reduction : {Reduction::sum, Reduction::max, Reduction::average}) {
        if (!reduces(op) && reduction != Reduction::sum) continue;
        for (Algorithm algorithm : algorithms_of(op)) {
          for (int form = 0; form < 8; ++form) {
            Call call;
            call.op = op;
            call.reduction = reduction;
            call.counts = Counts(3, count);
            call.in_place = (form & 1) != 0;
            if (call.in_place && !has_in_place_form(op)) continue;
            call.where = (form & 2) != 0 ? Where::plain : Where::heap;
            call.posted = (form & 4) != 0;
            call.root = static_cast<int>(seed % 3);
            call.options.algorithm = algorithm;
            call.seed = ++seed;
            all.push_back(call);
          }
        }
      }
    }
  }
  // With a core for each rank, other payloads are read in place.
  for (const std::uint32_t cores : {1U, 3U}) {
    run_ranks(3,
              [&](Context& context) {
                for (const Call& call : all) run(context, context.world(), call);
              },
              {.cores = cores});
  }
}

TEST(CollectiveForms, EveryReductionOfEveryType) {
  std::vector<Call> all;
  std::uint64_t seed = 99;
  for (Op op : {Op::reduce_scatter, Op::all_reduce, Op::reduce}) {
    for (DType dtype : kDTypes) {
      for (Reduction reduction : reductions_of(dtype)) {
        for (Algorithm algorithm : algorithms_of(op)) {
          for (std::size_t count : {std::size_t{5}, std::size_t{7000}}) {
            Call call;
            call.op = op;
            call.dtype = dtype;
            call.reduction = reduction;
            call.counts = Counts(4, count);
            call.root = static_cast<int>(seed % 4);
            call.options.algorithm = algorithm;
            call.seed = ++seed;
            all.push_back(call);
          }
        }
      }
    }
  }
  run_ranks(4, [&](Context& context) {
    for (const Call& call : all) run(context, context.world(), call);
  });
}

TEST(CollectiveForms, ReductionsThatElementsLackAreRefusedBeforeAnythingIsSent) {
  run_ranks(2, [&](Context& context) {
    double room[16] = {};
    for (DType dtype : kDTypes) {
      const auto possible = reductions_of(dtype);
      for (Reduction reduction : kReductions) {
        const bool works = std::find(possible.begin(), possible.end(), reduction) != possible.end();
        EXPECT_EQ(tsprun::reduces(reduction, dtype), works) << name(reduction) << " of " << name(dtype);
        if (works || context.rank() == 1) continue;  // rank 1 calls nothing: rank 0 must not wait for it
        const Buffer buffer(room, 4, dtype);
        const auto check = [&](const char* op, const std::function<void()>& call) {
          try {
            call();
            ADD_FAILURE() << op << ": " << name(reduction) << " of " << name(dtype) << " wasn't refused";
          } catch (const Error& error) {
            EXPECT_EQ(error.cause(), Cause::refused);
            const std::string what = error.what();
            EXPECT_NE(what.find(op), std::string::npos) << what;
            EXPECT_NE(what.find(name(dtype)), std::string::npos) << what;
          }
        };
        check("all_reduce", [&] { context.world().all_reduce(buffer, reduction); });
        check("reduce", [&] { context.world().reduce(buffer, buffer, reduction, 0); });
        check("reduce_scatter", [&] { context.world().reduce_scatter(buffer, buffer.slice(0, 2), reduction); });
      }
    }
  });
}

}  // namespace
}  // namespace tsprun::detail::test::collectives_values_test
