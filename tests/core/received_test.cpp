// What operations bring a rank: a phantom, which counts by the algorithms' formulas, beside a real rank's counters.
#include "core/collectives/registry.h"
#include "tests/support/calls.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tsprun::detail::test::received_test {
namespace {

/// Makes a call, without a look at its result, and returns what this rank received by it.
std::vector<std::uint64_t> received_by(Context& context, const Call& call) {
  const TrafficCounters before = context.traffic();
  start(context, context.world(), call);
  const TrafficCounters after = context.traffic();
  std::vector<std::uint64_t> bytes;
  for (int i = 0; i < kPurposes; ++i) bytes.push_back(after.received[i] - before.received[i]);
  return bytes;
}

/// Returns calls of every form of an algorithm's operation, of sizes around those at which algorithms cut and copy.
std::vector<Call> calls_of(const AlgorithmRow& row, int ranks) {
  std::vector<Call> calls;
  for (const DType dtype : {DType::bf16, DType::f64}) {
    for (const std::size_t count : {0U, 1U, 7U, 5000U, 140001U}) {
      for (const bool uneven : {false, true}) {
        Call call;
        call.op = row.op;
        call.dtype = dtype;
        call.root = ranks - 1;
        call.uneven = uneven && has_uneven_form(row.op);
        for (int rank = 0; rank < ranks; ++rank)
          call.counts.push_back(call.uneven ? count / (1 + static_cast<std::size_t>(rank)) : count);
        call.options = {.purpose = Purpose::kv, .algorithm = row.algorithm};
        calls.push_back(call);
        call.scattered = call.uneven && has_scattered_form(row.op);
        if (call.scattered) calls.push_back(call);
      }
    }
  }
  return calls;
}

class Received : public testing::TestWithParam<int> {};

TEST_P(Received, ByAPhantomIsWhatARealRankReceives) {
  const int ranks = GetParam();
  const int nodes = ranks == 8 ? 4 : ranks == 4 || ranks == 6 ? 2 : 1;  // four nodes add along trees
  run_ranks(ranks,
            [&](Context& context) {
              Context phantom = make_phantom(context.rank(), context.size(), likeness(context));
              int tried = 0;
              for (const AlgorithmRow& row : algorithm_rows()) {
                if (!std::ranges::count(kCallable, row.op) || !can_run(context.world(), row.op, row.algorithm)) continue;
                for (const Call& call : calls_of(row, ranks)) {
                  Call imagined = call;  // there is no memory behind a phantom's heap
                  imagined.where = Where::plain;
                  EXPECT_EQ(received_by(phantom, imagined), received_by(context, call))
                      << call.describe() << ", rank " << context.rank() << " of " << ranks;
                  ++tried;
                }
              }
              EXPECT_GT(tried, 100);
            },
            {.nodes = nodes, .reassociate = true});
}

INSTANTIATE_TEST_SUITE_P(Ranks, Received, testing::Values(1, 2, 3, 4, 6, 8),
                         [](const testing::TestParamInfo<int>& ranks) { return std::to_string(ranks.param); });

}  // namespace
}  // namespace tsprun::detail::test::received_test
