// Exact traffic: counted element by element, held against the table of docs/algorithms.md in real numbers, and its figures.
#include "layers/theory/traffic.h"

#include "layers/layout/heads.h"
#include "layers/layout/zigzag.h"
#include "layers/theory/peaks.h"
#include "tests/layers/step_formulas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tsprun::detail::theory::traffic_test {
namespace {

using formulas::dp_block;
using formulas::embedding;
using formulas::norm_gain;
using formulas::owner_of;
using formulas::sp_gather_block;
using formulas::sp_ring_block;
using formulas::sp_ulysses_block;
using formulas::tp_block;
using formulas::tp_sequence_block;
using formulas::tp_sp_block;
using formulas::Traffic;
using formulas::tsp_block;
using formulas::tsp_step;
using formulas::zero3_block;

Setting setting(std::size_t query_heads, std::size_t kv_heads, std::size_t batch, std::size_t sequence,
                DType dtype = DType::bf16) {
  Setting s;
  s.model.name = "test";
  s.model.hidden = 24;
  s.model.layers = 3;
  s.model.query_heads = query_heads;
  s.model.kv_heads = kv_heads;
  s.model.head_dim = 6;
  s.model.intermediate = 37;
  s.model.vocabulary = 101;
  s.model.max_positions = 64;
  s.batch = batch;
  s.sequence = sequence;
  s.bytes = ElementBytes::of(dtype);
  return s;
}

Setting appendix_c(std::size_t sequence, std::size_t g = 1) {
  Setting s;
  s.model = find_config("paper-7b").config;
  s.model.kv_heads = 32 / g;
  s.sequence = sequence;
  s.bytes = ElementBytes::of(DType::bf16);
  return s;
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const auto& [query_heads, kv_heads] :
       {std::pair<std::size_t, std::size_t>{24, 24}, {24, 8}, {24, 2}, {24, 1}, {24, 3}, {24, 6}}) {
    for (const std::size_t sequence : {1U, 5U, 16U, 37U}) {
      all.push_back(setting(query_heads, kv_heads, 2, sequence, DType::bf16));
      all.push_back(setting(query_heads, kv_heads, 1, sequence, DType::f64));
    }
  }
  return all;
}

constexpr int kDegrees[] = {1, 2, 3, 4, 6, 8};

TEST(ElementBytes, AccumulateInF32ButForF64) {
  EXPECT_EQ(ElementBytes::of(DType::bf16).element, 2U);
  EXPECT_EQ(ElementBytes::of(DType::bf16).accumulated, 4U);
  EXPECT_EQ(ElementBytes::of(DType::f32).lse, 4U);
  EXPECT_EQ(ElementBytes::of(DType::f64).accumulated, 8U);
  EXPECT_EQ(ElementBytes::of(DType::f64).lse, 8U);
}

/// Returns what a phantom of the rank receives in a block under TSP, without norm gains. `ring`: sums go round the ring of ranks.
Traffic counted_block(const Setting& s, int ranks, int rank, bool ring) {
  PeakOptions options;
  if (ring) options.like.algorithms = "reduce=ring,reduce_scatter=ring";
  Traffic traffic = block_counts({.setting = s, .layout = Layout::tsp(ranks)}, rank, options).traffic;
  traffic.backward[Purpose::other] = 0;
  return traffic;
}

/// Follows every shard and every token's K/V of Algorithms 1 and 2 from rank to rank.
TEST(TspTraffic, IsWhatFollowingEachShardAndTokenCounts) {
  for (const Setting& s : settings()) {
    for (const int ranks : kDegrees) {
      const auto n = static_cast<std::size_t>(ranks);
      const std::size_t h = s.model.hidden;
      const std::size_t d = s.model.head_dim;
      const std::size_t g = s.model.query_heads / s.model.kv_heads;
      const Zigzag zigzag(s.sequence, ranks);
      // Rows of weights by owner, dealt one by one.
      std::vector<std::uint64_t> attention(n);
      std::vector<std::uint64_t> mlp(n);
      for (std::size_t head = 0; head < s.model.query_heads; ++head) {
        const std::size_t owner = head / (s.model.query_heads / n);
        attention[owner] += 2 * d * h;
        if (head % g == 0) attention[owner] += 2 * d * h;
      }
      for (std::size_t owner = 0, row = 0; owner < n; ++owner) {
        for (std::size_t i = 0; i < s.model.intermediate / n + (owner < s.model.intermediate % n ? 1 : 0); ++i, ++row)
          mlp[owner] += 3 * h;
      }

      for (const bool ring : {false, true}) {
        std::vector<Traffic> expected(n);
        for (std::size_t owner = 0; owner < n; ++owner) {
          for (std::size_t p = 0; p < n; ++p) {
            if (p == owner) continue;
            expected[p].forward[Purpose::weights] += (attention[owner] + mlp[owner]) * s.bytes.element;
            expected[p].backward[Purpose::weights] += (attention[owner] + mlp[owner]) * s.bytes.element;
          }
          // A sum for `owner` visits owner+1, owner+2, …, owner; or the owner reads all the others.
          for (std::size_t hop = 1; hop < n; ++hop) {
            const std::size_t around = (owner + 1 + hop) % n;
            const std::size_t at = ring ? around : owner;
            const auto tokens = static_cast<std::uint64_t>(zigzag.tokens(static_cast<int>(owner)));
            expected[at].backward[Purpose::gradients] += attention[owner] * s.bytes.accumulated;
            expected[around].backward[Purpose::gradients] += mlp[owner] * s.bytes.accumulated;
            expected[at].backward[Purpose::kv] += s.batch * tokens * 2 * s.model.kv_heads * d * s.bytes.accumulated;
          }
        }
        for (std::size_t p = 0; p < n; ++p) {
          for (std::size_t position = 0; position < s.sequence; ++position) {
            if (owner_of(s.sequence, ranks, position) == static_cast<int>(p)) continue;
            const std::uint64_t bytes = s.batch * 2 * s.model.kv_heads * d * s.bytes.element;
            expected[p].forward[Purpose::kv] += bytes;
            expected[p].backward[Purpose::kv] += bytes;
          }
        }
        Traffic sum;
        for (std::size_t p = 0; p < n; ++p) {
          EXPECT_EQ(counted_block(s, ranks, static_cast<int>(p), ring), expected[p]) << "D " << ranks << ", rank " << p;
          sum += expected[p];
        }
        EXPECT_EQ(tsp_block(s, ranks), sum);
      }
    }
  }
}

TEST(TspTraffic, IsTheSameUnderEveryRecomputation) {
  Setting s = setting(24, 8, 2, 37);
  const Traffic none = tsp_block(s, 4);
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    s.recompute = recompute;
    EXPECT_EQ(tsp_block(s, 4), none);
    EXPECT_EQ(zero3_block(s, 4), none);
  }
}

TEST(UlyssesTraffic, IsWhatFollowingEachTokensHeadsCounts) {
  for (Setting s : settings()) {
    for (const int ranks : kDegrees) {
      const Zigzag zigzag(s.sequence, ranks);
      const HeadCut heads(s.model.query_heads, s.model.kv_heads, ranks);
      std::uint64_t q = 0;
      std::uint64_t k = 0;
      bool shared = false;
      for (std::size_t position = 0; position < s.sequence; ++position) {
        for (int rank = 0; rank < ranks; ++rank) {
          if (owner_of(s.sequence, ranks, position) == rank) continue;
          q += s.batch * s.model.head_dim * heads.query_heads(rank).count;
          k += s.batch * s.model.head_dim * heads.kv_heads_read(rank).count;
        }
      }
      for (int rank = 1; rank < ranks; ++rank)
        shared = shared || heads.kv_heads_read(rank).first < heads.kv_heads_read(rank - 1).end();
      const std::uint64_t dkv = shared ? s.bytes.accumulated : s.bytes.element;
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        s.recompute = recompute;
        const Traffic traffic = sp_ulysses_block(s, ranks);
        EXPECT_EQ(traffic.forward[Purpose::activations], (2 * q + 2 * k) * s.bytes.element);
        const std::uint64_t again = recompute == Recompute::none        ? 0
                                    : recompute == Recompute::selective ? q + 2 * k
                                                                        : 2 * q + 2 * k;
        EXPECT_EQ(traffic.backward[Purpose::activations], 2 * q * s.bytes.element + 2 * k * dkv + again * s.bytes.element);
      }
    }
  }
}

/// The table as printed: means over ranks in real numbers, for sizes that divide.
TEST(TrafficTable, HoldsRowByRow) {
  for (const std::size_t kv_heads : {24U, 12U, 8U, 4U, 2U, 1U}) {
    for (const int ranks : {2, 3, 4, 6, 8, 12, 24}) {
      const auto D = static_cast<double>(ranks);
      const double n_kv = static_cast<double>(kv_heads);
      if (std::fmod(n_kv, D) != 0 && std::fmod(D, n_kv) != 0) continue;
      const Setting s = setting(24, kv_heads, 2, 96);
      const double rho = (D - 1) / D;
      const double B = 2;
      const double S = 96;
      const double h = 24;
      const double d = 6;
      const double n_h = 24;
      const double f = 37;
      const double V = 101;
      const double beta = 2;
      const double beta_a = 4;
      const double beta_l = 4;
      const double P_attn = 2 * h * d * (n_h + n_kv);
      const double P_mlp = 3 * f * h;
      const double P_L = P_attn + P_mlp;
      const double KV = 2 * B * S * n_kv * d;
      const double BSh = B * S * h;
      const auto m = [&](double x) { return std::max(n_kv, x); };
      const auto c = [&](double x) { return std::max(1.0, x / n_kv); };
      const auto mean = [&](std::uint64_t sum) { return static_cast<double>(sum) / D; };
      const auto near = [&](double actual, double expected) { EXPECT_NEAR(actual, expected, 1e-9 * (1 + expected)); };

      const Traffic tsp = tsp_block(s, ranks);
      near(mean(tsp.forward[Purpose::weights]), P_L * beta * rho);
      near(mean(tsp.forward[Purpose::kv]), KV * beta * rho);
      near(mean(tsp.backward[Purpose::weights] + tsp.backward[Purpose::gradients]), P_L * (beta + beta_a) * rho);
      near(mean(tsp.backward[Purpose::kv]), KV * (beta + beta_a) * rho);
      near(mean(zero3_block(s, ranks).forward.total()), (P_L + KV) * beta * rho);
      near(mean(zero3_block(s, ranks).backward.total()), (P_L + KV) * (beta + beta_a) * rho);

      const double replicas = 4 * h * d * beta_a * (c(D) - 1) / c(D);
      near(mean(tp_block(s, ranks).forward.total()), 4 * BSh * beta * rho);
      near(mean(tp_block(s, ranks).backward.total()), 4 * BSh * beta * rho + replicas);
      near(mean(tp_sequence_block(s, ranks, true).backward.total()), 4 * BSh * beta * rho + replicas);
      near(mean(tp_sequence_block(s, ranks, false).backward.total()), 6 * BSh * beta * rho + replicas);

      near(mean(sp_gather_block(s, ranks).forward.total()), KV * beta * rho);
      near(mean(sp_gather_block(s, ranks).backward.total()), KV * (beta + beta_a) * rho + 2 * P_L * beta_a * rho);
      EXPECT_EQ(sp_ring_block(s, ranks), sp_gather_block(s, ranks));
      Setting full = s;
      full.recompute = Recompute::full;
      near(mean(sp_ring_block(full, ranks).total() - sp_ring_block(s, ranks).total()), KV * beta * rho);
      EXPECT_EQ(sp_gather_block(full, ranks), sp_gather_block(s, ranks));

      const double beta_kv = n_kv < D ? beta_a : beta;
      near(mean(dp_block(s, ranks).total()), 2 * P_L * beta_a * rho);
      if (96 % (2 * ranks) == 0) {
        near(mean(sp_ulysses_block(s, ranks).forward.total()), 2 * B * S * d * (n_h + m(D)) * beta * rho / D);
        near(mean(sp_ulysses_block(s, ranks).backward.total()),
             2 * B * S * d * (n_h * beta + m(D) * beta_kv) * rho / D + 2 * P_L * beta_a * rho);
      }

      near(mean((norm_gain(s, ranks) * 2).total()), 4 * h * beta_a * rho);
      near(mean(embedding(s, 77).forward.total()), 77 * h * beta / D);
      near(mean(embedding(s, 77).backward.total()), 77 * h * beta_a / D);
      near(mean(head(s, ranks, HeadPlan::rotate_weights).forward.total()), V * h * beta * rho);
      near(mean(head(s, ranks, HeadPlan::rotate_weights).backward.total()), V * h * (beta + beta_a) * rho);
      near(mean(head(s, ranks, HeadPlan::gather_activations).forward.total()), B * S * (h * beta + 2 * beta_l) * rho);
      near(mean(head(s, ranks, HeadPlan::gather_activations).backward.total()), BSh * beta_a * rho);
      near(mean(head(s, ranks, HeadPlan::gather_activations, false).backward.total()), BSh * (beta + beta_a) * rho);
      EXPECT_EQ(formulas::head_rotated(s, ranks), head(s, ranks, HeadPlan::rotate_weights));
      EXPECT_EQ(formulas::head_gathered(s, ranks), head(s, ranks, HeadPlan::gather_activations));
      EXPECT_EQ(formulas::head_gathered(s, ranks, false), head(s, ranks, HeadPlan::gather_activations, false));
      EXPECT_EQ(formulas::tp_embedding(s, ranks), tp_embedding(s, ranks));
      EXPECT_EQ(formulas::tp_head(s, ranks), tp_head(s, ranks));
      near(mean(tp_embedding(s, ranks).total()), 2 * BSh * beta * rho);
      near(mean(tp_head(s, ranks).forward.total()), 2 * B * S * beta_l * rho);
      near(mean(tp_head(s, ranks).backward.total()), 2 * BSh * beta * rho);
    }
  }
}

TEST(TrafficTable, HoldsForTensorTimesSequenceParallelism) {
  for (const std::size_t kv_heads : {24U, 8U, 4U, 2U, 1U}) {
    for (const int tensor : {1, 2, 4, 8}) {
      for (const int sequence : {1, 2, 3, 4}) {
        const auto T = static_cast<double>(tensor);
        const auto Sigma = static_cast<double>(sequence);
        const double n_kv = static_cast<double>(kv_heads);
        const Setting s = setting(24, kv_heads, 2, 37);
        const double h = 24;
        const double d = 6;
        const double BS = 2 * 37;
        const double beta = 2;
        const double beta_a = 4;
        const double m = std::max(n_kv, T);
        const double c = std::max(1.0, T / n_kv);
        const double P_T = (3 * 37 * h + 2 * h * 24 * d) / T + 2 * h * d * m / T;
        const double A = 2 * BS * d * m * beta / T * (Sigma - 1) / Sigma;
        const double E = 4 * BS * h * beta / Sigma * (T - 1) / T;
        const Traffic traffic = tp_sp_block(s, tensor, sequence);
        const double ranks = T * Sigma;
        EXPECT_NEAR(static_cast<double>(traffic.forward.total()) / ranks, A + E, 1e-6);
        EXPECT_NEAR(static_cast<double>(traffic.backward.total()) / ranks,
                    A * (1 + beta_a / beta) + E + 2 * P_T * beta_a * (Sigma - 1) / Sigma + 4 * h * d * beta_a * (c - 1) / c,
                    1e-6);
        if (sequence == 1) {
          EXPECT_EQ(traffic, tp_block(s, tensor));
        }
        if (tensor == 1) {
          EXPECT_EQ(traffic, sp_gather_block(s, sequence));
        }
      }
    }
  }
}

TEST(HeadPlan, TakesWhatMovesLess) {
  // BS(h(2β+β_a) + 2β_l) < V·h·(2β+β_a): 24·8 = 192 a row, 200 a token; 101 rows make 96 tokens the last that are gathered.
  for (const std::size_t tokens : {1U, 50U, 96U, 97U, 200U}) {
    const Setting s = setting(24, 8, 1, tokens);
    const bool gather = tokens * 200 < 101 * 192;
    EXPECT_EQ(formulas::head_gathers(s), gather) << tokens;
    EXPECT_EQ(head_plan(s), gather ? HeadPlan::gather_activations : HeadPlan::rotate_weights) << tokens;
    const Traffic rotated = head(s, 4, HeadPlan::rotate_weights);
    const Traffic gathered = head(s, 4, HeadPlan::gather_activations, false);
    EXPECT_EQ(head_plan(s) == HeadPlan::gather_activations, gathered.total() < rotated.total());
  }
}

TEST(TspStep, IsTheSumOfItsParts) {
  const Setting s = setting(24, 8, 2, 37);
  const Traffic step = tsp_step(s, 4, 50);
  EXPECT_EQ(step.forward[Purpose::weights], 3 * tsp_block(s, 4).forward[Purpose::weights]);
  EXPECT_EQ(step.backward[Purpose::gradients], 3 * tsp_block(s, 4).backward[Purpose::gradients]);
  EXPECT_EQ(step.backward[Purpose::other], 7U * 2 * 24 * 4 * 3);  // 2L+1 gains, 2·h elements, β_a, D−1
  EXPECT_EQ(step.forward[Purpose::embedding], 50U * 24 * 2);
  EXPECT_EQ(step.forward[Purpose::head], formulas::head(s, 4).forward[Purpose::head]);
  EXPECT_EQ(step.forward[Purpose::activations] + step.backward[Purpose::activations], 0U);
  EXPECT_EQ(tsp_step(s, 1, 0).total(), 0U);
}

TEST(ExactFigures, OfThePapersModel) {
  // Fig. 5a's exact TSP: forward GB per layer and GPU at D = 8.
  EXPECT_NEAR(static_cast<double>(tsp_block(appendix_c(8192), 8).forward.total()) / 8 / 1e9, 0.5872, 5e-5);
  EXPECT_NEAR(static_cast<double>(tsp_block(appendix_c(32768), 8).forward.total()) / 8 / 1e9, 0.9395, 5e-5);
  EXPECT_NEAR(static_cast<double>(tsp_block(appendix_c(131072), 8).forward.total()) / 8 / 1e9, 2.3488, 5e-5);
  // Fig. 7's exact ratio: 0.5 + 4h/(BS), for every D.
  for (const int ranks : {2, 4, 8}) {
    for (const std::size_t sequence : {16384U, 32768U, 65536U}) {
      const Setting s = appendix_c(sequence);
      const double ratio =
          static_cast<double>(tsp_block(s, ranks).forward.total()) / static_cast<double>(tp_block(s, ranks).forward.total());
      EXPECT_NEAR(ratio, 0.5 + 4 * 4096.0 / static_cast<double>(sequence), 1e-12);
    }
  }
}

TEST(ExactFigures, OfTheBreakEven) {
  const auto over_h = [](Setting s, DType dtype, bool with_backward) {
    s.bytes = ElementBytes::of(dtype);
    return tsp_tp_break_even(s, with_backward) / 4096;
  };
  EXPECT_DOUBLE_EQ(over_h(appendix_c(1), DType::bf16, false), 8);
  EXPECT_DOUBLE_EQ(over_h(appendix_c(1), DType::f32, true), 24);
  EXPECT_DOUBLE_EQ(over_h(appendix_c(1, 2), DType::f32, true), 9);
  EXPECT_NEAR(over_h(appendix_c(1, 4), DType::f32, true), 6.69, 0.005);
  EXPECT_NEAR(over_h(appendix_c(1, 8), DType::f32, true), 5.90, 0.005);
  EXPECT_TRUE(std::isinf(over_h(appendix_c(1), DType::bf16, true)));
  EXPECT_DOUBLE_EQ(over_h(appendix_c(1, 2), DType::bf16, true), 15);
  EXPECT_NEAR(over_h(appendix_c(1, 4), DType::bf16, true), 9.67, 0.005);
  EXPECT_NEAR(over_h(appendix_c(1, 8), DType::bf16, true), 8.14, 0.005);
  // At the break-even itself the exact counts are equal.
  const Setting even = appendix_c(8 * 4096);
  EXPECT_EQ(tsp_block(even, 8).forward.total(), tp_block(even, 8).forward.total());
}

}  // namespace
}  // namespace tsprun::detail::theory::traffic_test
