// Sequence attention by each exchange against plain loops over whole sequences, its traffic against the formulas, and its bits.
#include "tests/layers/closed_formulas.h"
#include "tests/layers/sequence_attention_support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tsprun::detail::test::sequence_attention_test {
namespace {

constexpr std::initializer_list<SequenceExchange> kExchanges = {SequenceExchange::gather, SequenceExchange::ring,
                                                                SequenceExchange::ulysses};

void expect_reference(const AttentionCase& of, double tolerance) {
  expect_close(run_attention(of).results, reference_attention(of), tolerance, of.describe());
}

/// Any n_kv that divides n_h, any S from 1 on. Query heads divide by the ranks where the exchange needs it.
AttentionCase random_case(std::mt19937_64& random, SequenceExchange exchange, int ranks) {
  const auto between = [&](std::size_t low, std::size_t high) { return low + random() % (high - low + 1); };
  AttentionCase of;
  of.exchange = exchange;
  of.ranks = ranks;
  of.query_heads = exchange == SequenceExchange::ulysses ? static_cast<std::size_t>(ranks) * between(1, 3) : between(1, 12);
  std::vector<std::size_t> divisors;
  for (std::size_t n = 1; n <= of.query_heads; ++n) {
    if (of.query_heads % n == 0) divisors.push_back(n);
  }
  of.kv_heads = divisors[random() % divisors.size()];
  of.head_dim = 2 * between(1, 5);
  of.batch = between(1, 3);
  of.sequence = between(1, 41);
  of.recompute = static_cast<Recompute>(random() % 3);
  of.bucket_heads = random() % 4;
  of.begins = random() % 2 == 0;
  of.seed = random();
  return of;
}

TEST(SequenceAttention, EqualsWholeSequencesForRandomShapes) {
  std::mt19937_64 random(20261122);
  for (const SequenceExchange exchange : kExchanges) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (int i = 0; i < 6; ++i) expect_reference(random_case(random, exchange, ranks), 1e-11);
    }
  }
}

TEST(SequenceAttention, SequencesShorterThanTheRanks) {
  for (const SequenceExchange exchange : kExchanges) {
    for (const std::size_t sequence : {1U, 3U, 5U, 9U}) {
      for (const int ranks : {2, 8}) {
        expect_reference({.exchange = exchange,
                          .ranks = ranks,
                          .batch = 2,
                          .sequence = sequence,
                          .query_heads = 8,
                          .kv_heads = 4,
                          .head_dim = 4,
                          .recompute = Recompute::full},
                         1e-11);
      }
    }
  }
}

TEST(SequenceAttention, KvHeadsThatDontDivideByTheRanks) {
  for (const auto& [queries, kv, ranks] : {std::array<std::size_t, 3>{12, 6, 4}, {12, 4, 3}, {12, 3, 4}, {8, 1, 8}, {8, 2, 4}}) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      expect_reference({.exchange = SequenceExchange::ulysses,
                        .ranks = static_cast<int>(ranks),
                        .batch = 2,
                        .sequence = 23,
                        .query_heads = queries,
                        .kv_heads = kv,
                        .head_dim = 6,
                        .recompute = recompute},
                       1e-11);
    }
  }
}

// Each query's weight is almost all on one key: outputs and dV are right whatever the size of the scores. dQ and dK are
// differences of numbers that cancel, times keys.
TEST(SequenceAttention, LargeScoresGiveWhatTheyGiveInF64) {
  for (const SequenceExchange exchange : kExchanges) {
    for (const int ranks : {1, 2, 4}) {
      for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 2e-3}, {DType::bf16, 2e-2}}) {
        for (const double factor : {1e3, 1e9, 1e30}) {
          const AttentionCase of{.exchange = exchange,
                                 .ranks = ranks,
                                 .sequence = 61,
                                 .query_heads = 4,
                                 .kv_heads = 4,
                                 .head_dim = 10,
                                 .dtype = dtype,
                                 .keys_of_queries = factor};
          Tensors results = run_attention(of).results;
          const Tensors expected = reference_attention(of);
          for (const char* name : {"o", "dv"}) {
            expect_close({{name, results.at(name)}}, {{name, expected.at(name)}}, tolerance, of.describe());
          }
          for (const char* name : {"dq", "dk"}) {
            for (const double value : results.at(name)) ASSERT_TRUE(std::isfinite(value)) << of.describe() << ", " << name;
          }
        }
      }
    }
  }
}

// As under tensor parallelism, with cuts that don't meet those of K/V heads.
TEST(SequenceAttention, PartsOfTheModelsHeads) {
  for (const SequenceExchange exchange : kExchanges) {
    for (const HeadRange queries : {HeadRange{3, 3}, HeadRange{0, 6}, HeadRange{6, 6}, HeadRange{9, 3}}) {
      for (const int ranks : {1, 3}) {
        for (const std::size_t kv : {1U, 2U, 6U, 12U}) {
          expect_reference({.exchange = exchange,
                            .ranks = ranks,
                            .batch = 2,
                            .sequence = 19,
                            .query_heads = 12,
                            .kv_heads = kv,
                            .head_dim = 4,
                            .queries = queries,
                            .bucket_heads = 1},
                           1e-11);
        }
      }
    }
  }
}

TEST(SequenceAttention, InSinglePrecisionAndWithBf16Storage) {
  std::mt19937_64 random(5);
  for (const SequenceExchange exchange : kExchanges) {
    for (const int ranks : {1, 2, 4, 8}) {
      for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 2e-5}, {DType::bf16, 2e-2}}) {
        AttentionCase of = random_case(random, exchange, ranks);
        of.head_dim += 6;
        of.sequence += 20;
        of.dtype = dtype;
        expect_reference(of, tolerance);
      }
    }
  }
}

// The table's rows, without the gradients of weights.
formulas::Traffic table(const AttentionCase& of) {
  ModelConfig config = small_config(1, 1, of.query_heads, of.kv_heads, of.head_dim, 1, 1);
  config.specs = LayerSpec{.window = of.window};
  const Setting setting{.model = config,
                        .batch = of.batch,
                        .sequence = of.sequence,
                        .bytes = ElementBytes::of(of.dtype),
                        .recompute = of.recompute};
  switch (of.exchange) {
    case SequenceExchange::gather: return formulas::sp_gather_block(setting, of.ranks);
    case SequenceExchange::ring: return formulas::sp_ring_block(setting, of.ranks);
    case SequenceExchange::ulysses: return formulas::sp_ulysses_block(setting, of.ranks);
  }
  return {};
}

TEST(SequenceAttention, ReceivedBytesEqualTheTable) {
  std::mt19937_64 random(77);
  for (const SequenceExchange exchange : kExchanges) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
          AttentionCase of = random_case(random, exchange, ranks);
          of.dtype = dtype;
          of.recompute = recompute;
          const AttentionRun run = run_attention(of);
          const formulas::Traffic expected = table(of);
          for (const Purpose purpose : {Purpose::kv, Purpose::activations}) {
            EXPECT_EQ(run.forward[purpose], expected.forward[purpose]) << name(purpose) << " forward, " << of.describe();
            EXPECT_EQ(run.backward[purpose], expected.backward[purpose]) << name(purpose) << " backward, " << of.describe();
          }
          // Beside the table: Δ goes to the heads' ranks, from all tokens but their own.
          std::uint64_t delta = 0;
          if (exchange == SequenceExchange::ulysses && ranks > 1) {
            const auto count = static_cast<std::size_t>(ranks);
            delta = of.batch * of.sequence * of.query_heads / count * (count - 1) * ElementBytes::of(dtype).lse;
          }
          EXPECT_EQ(run.forward.total(), expected.forward[Purpose::kv] + expected.forward[Purpose::activations]) << of.describe();
          EXPECT_EQ(run.backward.total(), expected.backward[Purpose::kv] + expected.backward[Purpose::activations] + delta)
              << of.describe();
        }
      }
    }
  }
}

/// Windows of one token, of a part of a chunk, of several chunks, of all but one token, and as long as the sequence or longer,
/// where chunks are of unlike lengths, or empty. Under gather and ring ranks receive what their queries see and nothing else.
TEST(SequenceAttention, RanksReceiveTheKeysThatAWindowShowsThem) {
  std::mt19937_64 random(4096);
  for (const SequenceExchange exchange : kExchanges) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (const std::size_t sequence : {5U, 41U, 53U, 67U}) {
        for (const std::size_t window : {std::size_t{1}, std::size_t{2}, 2 + random() % 5, 7 + random() % 9, sequence / 2,
                                         sequence - 1, sequence, sequence + 7}) {
          AttentionCase of = random_case(random, exchange, ranks);
          of.sequence = sequence;
          of.window = window;
          const AttentionRun run = run_attention(of);
          expect_close(run.results, reference_attention(of), 1e-12, of.describe());
          const formulas::Traffic expected = table(of);
          EXPECT_EQ(run.forward[Purpose::kv], expected.forward[Purpose::kv]) << of.describe();
          EXPECT_EQ(run.backward[Purpose::kv], expected.backward[Purpose::kv]) << of.describe();
        }
      }
    }
  }
}

/// A ring that would have nothing to carry is none.
TEST(SequenceAttention, WithAWindowRingAndGatherHaveTheSameBits) {
  for (const std::size_t window : {5U, 40U, 130U}) {
    AttentionCase of{.ranks = 4, .batch = 2, .sequence = 131, .query_heads = 8, .kv_heads = 2, .head_dim = 16, .window = window};
    const Tensors gathered = run_attention(of).results;
    of.exchange = SequenceExchange::ring;
    EXPECT_EQ(run_attention(of).results, gathered) << of.describe();
    of.threads = 3;
    of.begins = false;
    EXPECT_EQ(run_attention(of).results, gathered) << of.describe();
  }
}

/// The sum of what ranks p + 1, p + 2, … and p itself have of the gradients of rank p's keys, one after another.
TEST(SequenceAttention, GradientsOfKeysAreAddedInCanonicalOrder) {
  for (const SequenceExchange exchange : {SequenceExchange::gather, SequenceExchange::ring}) {
    for (const std::size_t window : {0U, 5U, 40U, 100U}) {
      AttentionCase of{.exchange = exchange,
                       .ranks = 4,
                       .batch = 2,
                       .sequence = 131,
                       .query_heads = 4,
                       .kv_heads = 2,
                       .head_dim = 6,
                       .window = window};
      const std::vector<int> owners = owners_of(of);
      const Tensors whole = run_attention(of).results;
      std::vector<Tensors> parts;
      for (of.only_of = 0; of.only_of < of.ranks; ++of.only_of) parts.push_back(run_attention(of).results);
      for (const char* gradient : {"dk", "dv"}) {
        for (std::size_t i = 0; i < whole.at(gradient).size(); ++i) {
          const int owner = owners[i / (of.kv_heads * of.head_dim) % of.sequence];
          double sum = 0;
          for (int t = 1; t <= of.ranks; ++t) sum += parts[static_cast<std::size_t>((owner + t) % of.ranks)].at(gradient)[i];
          ASSERT_EQ(whole.at(gradient)[i], sum) << gradient << ", " << of.describe();
        }
      }
    }
  }
}

TEST(SequenceAttention, NeitherThreadsNorAlgorithmsNorTheMomentOfBeginningChangeABit) {
  for (const SequenceExchange exchange : kExchanges) {
    AttentionCase of{.exchange = exchange,
                     .ranks = 4,
                     .batch = 2,
                     .sequence = 131,
                     .query_heads = 8,
                     .kv_heads = 2,
                     .head_dim = 16,
                     .dtype = DType::f32};
    const Tensors once = run_attention(of).results;
    EXPECT_EQ(run_attention(of).results, once) << of.describe();
    of.threads = 3;
    of.begins = false;
    of.algorithms = "all_gather=ring,reduce_scatter=ring";
    EXPECT_EQ(run_attention(of).results, once) << of.describe();
  }
}

TEST(SequenceAttention, RefusesUlyssesWhereTheRanksDontDivideTheHeads) {
  const AttentionCase of{
      .exchange = SequenceExchange::ulysses, .ranks = 4, .sequence = 8, .query_heads = 6, .kv_heads = 2, .head_dim = 4};
  for (const RankOutcome& outcome : try_ranks(of.ranks, [&](Context& context) {
         Rank rank(context);
         make_sequence_attention(of.exchange, rank, context.world(), of.dtype,
                                 {.queries = of.query_heads, .kv = of.kv_heads, .map = {of.group(), 0, 0}});
       })) {
    EXPECT_EQ(outcome.cause, Cause::refused);
    EXPECT_NE(outcome.message.find("ulysses: 6 query heads don't divide by 4; try 3 or 6"), std::string::npos) << outcome.message;
  }
}

}  // namespace
}  // namespace tsprun::detail::test::sequence_attention_test
