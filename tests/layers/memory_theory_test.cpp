// Parameters, saved activations and transients of TSP on paper.
#include "layers/layout/zigzag.h"
#include "layers/parameters/parameters.h"
#include "layers/theory/layouts.h"
#include "tests/layers/step_formulas.h"

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

RankParameters held_by_tsp(const ModelConfig& model, int ranks, int rank) {
  return held({.setting = {.model = model}, .layout = Layout::tsp(ranks)}, {0, rank});
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
        const std::uint64_t held_by_all = model.replicated_parameters();
        std::uint64_t sum = held_by_all;
        EXPECT_EQ(held_by_all, formulas::replicated_elements({.model = model}));
        for (int rank = 0; rank < ranks; ++rank) {
          const std::uint64_t held = held_by_tsp(model, ranks, rank).total();
          EXPECT_EQ(held, formulas::held_elements({.model = model}, Layout::tsp(ranks), 0, rank));
          sum += held - held_by_all;
        }
        EXPECT_EQ(sum, elements(model)) << "n_kv " << kv_heads << ", D " << ranks;
      }
    }
  }
}

TEST(TspParameters, AreExactlyOneDthWhereEverythingDivides) {
  const ModelConfig model = find_config("paper-7b").config;
  for (const int ranks : {1, 2, 4, 8, 16, 32}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const RankParameters held = held_by_tsp(model, ranks, rank);
      EXPECT_EQ((held.attention + held.mlp) * static_cast<std::uint64_t>(ranks), model.layers * std::uint64_t{268'435'456});
    }
  }
}

TEST(SavedActivations, AreThoseOfAppendixC) {
  EXPECT_EQ(saved_bytes_per_token(appendix_c(Recompute::none), {}), 114'816U);
  EXPECT_EQ(saved_bytes_per_token(appendix_c(Recompute::selective), {}), 24'704U);
  EXPECT_EQ(saved_bytes_per_token(appendix_c(Recompute::full), {}), 16'384U);
}

TEST(SavedActivations, AreThoseOfTheFormula) {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    Setting s = appendix_c(recompute);
    EXPECT_EQ(saved_bytes_per_token(s, s.model.layer(0)), formulas::saved_bytes_per_token(s, s.model.layer(0)));
    s.model.specs = LayerSpec{.query_key_norm = QueryKeyNorm::heads};
    EXPECT_EQ(saved_bytes_per_token(s, s.model.layer(0)), formulas::saved_bytes_per_token(s, s.model.layer(0)));
    for (const NormPlaces norms : {NormPlaces::after, NormPlaces::around, NormPlaces::shared}) {
      s.model.specs = LayerSpec{.norms = norms};
      EXPECT_EQ(saved_bytes_per_token(s, s.model.layer(0)), formulas::saved_bytes_per_token(s, s.model.layer(0)));
    }
    s.model.specs = LayerSpec{.query_key_norm = QueryKeyNorm::heads, .head_dim = 24, .kv_heads = 4, .intermediate = 100};
    EXPECT_EQ(saved_bytes_per_token(s, s.model.layer(0)), formulas::saved_bytes_per_token(s, s.model.layer(0)));
    s.model = find_config("nano-gpt2").config;
    EXPECT_EQ(saved_bytes_per_token(s, s.model.layer(0)), formulas::saved_bytes_per_token(s, s.model.layer(0)));
  }
}

TEST(SavedActivations, AddUpOverTheRanks) {
  Setting s = appendix_c(Recompute::none);
  s.batch = 3;
  s.sequence = 37;
  const Zigzag zigzag(s.sequence, 8);
  std::uint64_t sum = 0;
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(formulas::tokens_of(s.sequence, 8, rank), zigzag.tokens(rank));
    sum += formulas::activation_bytes(s, zigzag.tokens(rank), 8);
  }
  // L rows, the final residual, the head's log-sum-exp, two 4-byte ids, for each of 3·37 tokens.
  EXPECT_EQ(sum, 3U * 37 * (32 * 114'816 + 4096 * 2 + 4 + 8));
}

}  // namespace
}  // namespace tsprun::detail::theory::memory_theory_test
