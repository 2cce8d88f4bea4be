// One rank's part of a step's traffic: summed over the ranks it is the traffic of the whole step.
#include "layers/theory/step.h"
#include "tests/layers/closed_formulas.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tsprun::detail::theory::step_theory_test {
namespace {

Setting setting_of(std::size_t kv_heads, std::size_t vocabulary, std::size_t batch, std::size_t sequence) {
  Setting setting;
  setting.model = find_config("nano").config;
  setting.model.query_heads = 24;
  setting.model.kv_heads = kv_heads;
  setting.model.intermediate = 37;
  setting.model.vocabulary = vocabulary;
  setting.batch = batch;
  setting.sequence = sequence;
  return setting;
}

TEST(StepOfRank, SumsToTheStep) {
  std::mt19937 random(7);
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const std::size_t vocabulary : {5U, 101U, 5000U}) {  // the larger ones gather activations
      for (const std::size_t sequence : {1U, 7U, 64U}) {
        const Setting setting = setting_of(ranks == 3 ? 24 : 3, vocabulary, 2, sequence);
        std::vector<std::int32_t> ids(setting.tokens());
        for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % vocabulary);
        const std::vector<RemoteRows> rows = remote_rows(ids, setting, ranks);
        const Traffic expected = tsp_step(setting, ranks, remote_rows_of_all(rows));
        for (const SumPath path : {SumPath::direct, SumPath::ring}) {
          Traffic sum;
          for (int rank = 0; rank < ranks; ++rank) {
            sum += tsp_step_of_rank(setting, ranks, rank, path, rows[static_cast<std::size_t>(rank)], true);
          }
          EXPECT_EQ(sum, expected) << ranks << " ranks, vocabulary " << vocabulary << ", S " << sequence;
        }
      }
    }
  }
}

TEST(RemoteRows, AreCountedFromReaderAndOwner) {
  // D = 2, S = 4: chunks of one token; rank 0 owns tokens 0 and 3. V = 4: rank 0 owns ids 0 and 1.
  const Setting setting = setting_of(24, 4, 1, 4);
  const std::vector<std::int32_t> ids = {2, 0, 3, 1};
  const std::vector<RemoteRows> rows = remote_rows(ids, setting, 2);
  EXPECT_EQ(rows[0].needed, 1U);  // token 0 reads id 2
  EXPECT_EQ(rows[0].wanted, 1U);  // token 1, on rank 1, reads id 0
  EXPECT_EQ(rows[1].needed, 1U);
  EXPECT_EQ(rows[1].wanted, 1U);
}

TEST(StepOfRank, WithoutBackwardReceivesNothingThere) {
  const Setting setting = setting_of(3, 101, 1, 16);
  const Traffic traffic = tsp_step_of_rank(setting, 4, 1, SumPath::direct, {.needed = 3, .wanted = 2}, false);
  EXPECT_EQ(traffic.backward.total(), 0U);
  EXPECT_EQ(traffic.forward[Purpose::embedding], 3U * 64 * 4);
}

}  // namespace
}  // namespace tsprun::detail::theory::step_theory_test
