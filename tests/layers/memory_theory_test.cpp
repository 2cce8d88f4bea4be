// Parameters, saved activations and transients of TSP on paper.
#include "layers/layout/shards.h"
#include "layers/layout/zigzag.h"
#include "layers/parameters/parameters.h"
#include "layers/theory/memory.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tsprun::detail::theory::memory_theory_test {
namespace {

Setting appendix_c(Recompute recompute) {
  Setting s;
  s.model = find_config("paper-7b").config;
  s.sequence = 8192;
  s.bytes = ElementBytes::of(DType::bf16);
  s.recompute = recompute;
  return s;
}

std::uint64_t elements(const ModelConfig& model) {
  std::uint64_t sum = 0;
  for (const Parameter& parameter : model_parameters(model)) sum += parameter.elements();
  return sum;
}

TEST(TspParameters, SumToTheModelsForAnyCut) {
  ModelConfig model = find_config("nano").config;
  model.query_heads = 24;
  model.intermediate = 37;
  model.vocabulary = 101;
  for (const bool tied : {false, true}) {
    model.tied_embeddings = tied;
    for (const std::size_t kv_heads : {1U, 2U, 3U, 8U, 24U}) {
      model.kv_heads = kv_heads;
      for (const int ranks : {1, 2, 3, 4, 6, 8}) {
        const TspShards shards(model, ranks);
        std::uint64_t sum = shards.norm_gains();
        for (int rank = 0; rank < ranks; ++rank) sum += shards.total(rank) - shards.norm_gains();
        EXPECT_EQ(sum, elements(model)) << "n_kv " << kv_heads << ", D " << ranks;
      }
    }
  }
}

TEST(TspParameters, AreExactlyOneDthWhereEverythingDivides) {
  const ModelConfig model = find_config("paper-7b").config;
  for (const int ranks : {1, 2, 4, 8, 16, 32}) {
    const TspShards shards(model, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ((shards.attention(rank) + shards.mlp(rank)) * static_cast<std::uint64_t>(ranks), 268'435'456U);
    }
  }
}

TEST(SavedActivations, AreThoseOfTheSpecification) {
  EXPECT_EQ(saved_bytes_per_token(appendix_c(Recompute::none)), 114'816U);
  EXPECT_EQ(saved_bytes_per_token(appendix_c(Recompute::selective)), 24'704U);
  EXPECT_EQ(saved_bytes_per_token(appendix_c(Recompute::full)), 16'384U);
}

TEST(SavedActivations, AddUpOverTheRanks) {
  Setting s = appendix_c(Recompute::none);
  s.batch = 3;
  s.sequence = 37;
  const Zigzag zigzag(s.sequence, 8);
  std::uint64_t sum = 0;
  for (int rank = 0; rank < 8; ++rank) sum += activation_bytes(s, zigzag.tokens(rank), 8);
  // L rows, the final residual, the head's log-sum-exp, two 4-byte ids, for each of 3·37 tokens.
  EXPECT_EQ(sum, 3U * 37 * (32 * 114'816 + 4096 * 2 + 4 + 8));
}

TEST(Transients, AreTwoShardsForwardAndThreeBackward) {
  Setting s = appendix_c(Recompute::none);
  // A shard at D = 8: 4 query and 4 K/V heads, 4·4·128·4096 elements; a bucket of one head: K and V, 2·8192·128.
  const std::uint64_t shard = 4U * 4 * 128 * 4096;
  const std::uint64_t bucket = 2U * 8192 * 128;
  const Transients forward = tsp_attention_forward(s, 8, 1);
  EXPECT_EQ(forward.weights, 2 * shard * 2);
  EXPECT_EQ(forward.kv, 2 * bucket * 2);
  EXPECT_EQ(forward.weight_gradients + forward.kv_gradients, 0U);
  const Transients backward = tsp_attention_backward(s, 8, 2);
  EXPECT_EQ(backward.weights, 3 * shard * 2);
  EXPECT_EQ(backward.weight_gradients, 2 * shard * 4);
  EXPECT_EQ(backward.kv, 2 * 2 * bucket * 2);
  EXPECT_EQ(backward.kv_gradients, 2 * 2 * bucket * 4);
  EXPECT_EQ(backward.total(), backward.weights + backward.kv + backward.weight_gradients + backward.kv_gradients);
  const std::uint64_t mlp = 3U * 2048 * 4096;
  EXPECT_EQ(tsp_mlp_forward(s, 8).total(), 2 * mlp * 2);
  EXPECT_EQ(tsp_mlp_backward(s, 8).total(), 3 * mlp * 2 + 2 * mlp * 4);
  // The largest shard counts: with 3 K/V heads on 2 ranks one of them owns two.
  s.model.query_heads = 6;
  s.model.kv_heads = 3;
  EXPECT_EQ(tsp_attention_forward(s, 2, 1).weights, 2U * (2 * 4096 * 128 * (3 + 2)) * 2);
}

}  // namespace
}  // namespace tsprun::detail::theory::memory_theory_test
