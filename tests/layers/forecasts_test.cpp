// What `plan` prints as traffic and FLOPs, and the formulas of its model of time, beside what phantoms of all ranks count one by
// one: for every layout that the table of axes allows, so a new axis is among them.
#include "core/context.h"
#include "core/rank/rank.h"
#include "layers/layout/check_layout.h"
#include "layers/layout/mesh.h"
#include "layers/theory/flops.h"
#include "layers/theory/flows.h"
#include "layers/theory/search.h"
#include "layers/theory/step_counts.h"
#include "tests/layers/model_run.h"
#include "tests/layers/step_formulas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace tsprun::detail::test::forecasts_test {
namespace {

/// Counts of a phantom in one training step.
struct Counted {
  theory::Traffic traffic;
  double flops;
};

Counted count(const Setting& setting, const Layout& layout, int number, const PhantomOptions& like = {}) {
  Context phantom = make_phantom(number, layout.ranks(), like);
  Rank rank(phantom);
  Mesh mesh(phantom.world(), layout);
  Model model(rank, mesh,
              {.config = setting.model, .dtype = setting.bytes.dtype(), .recompute = setting.recompute, .training = true});
  TokenBatch evenly;  // without ids: all are equally frequent
  evenly.batch = setting.batch;
  evenly.sequence = setting.sequence;
  model.forward_backward(evenly);
  model.update({}, 1);
  return {.traffic = {.forward = theory::PurposeBytes::received(model.forward_traffic()),
                      .backward = theory::PurposeBytes::received(model.backward_traffic())},
          .flops = rank.compute().flops()};
}

/// Counts of the phantoms of all ranks.
struct CountedOfAll {
  theory::Traffic traffic;
  double most_flops = 0;
};

CountedOfAll count_all(const Setting& setting, const Layout& layout, const PhantomOptions& like = {}) {
  CountedOfAll all;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const Counted here = count(setting, layout, rank, like);
    all.traffic += here.traffic;
    all.most_flops = std::max(all.most_flops, here.flops);
  }
  return all;
}

/// Returns a model with these sizes of the layers behind the first.
ModelConfig with_sizes(const std::vector<LayerSpec>& of, ModelConfig config) {
  config.layers = of.size() + 1;
  config.specs = sizes(of);
  return config;
}

std::vector<ModelConfig> even_models() {
  return {
      small_config(64, 2, 8, 4, 8, 96, 128), small_config(64, 2, 8, 1, 8, 64, 4096, true), small_gpt2_config(2, 8, 8, 64, 128),
      with_sizes({{.head_dim = 16, .intermediate = 64}, {.head_dim = 4, .kv_heads = 8}}, small_config(64, 1, 8, 4, 8, 96, 128))};
}

/// Sizes that divide by eight: formulas spread tokens and their embedding rows evenly.
std::vector<Setting> settings(const std::vector<ModelConfig>& models, std::size_t batch, std::size_t sequence) {
  std::vector<Setting> all;
  for (const ModelConfig& config : models) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      const ModelCase of{.config = config, .batch = batch, .sequence = sequence, .dtype = DType::bf16, .recompute = recompute};
      all.push_back(of.setting());
    }
  }
  return all;
}

std::string describe(const Setting& setting, const Layout& layout) {
  return layout.label() + ", " + std::to_string(setting.model.kv_heads) + " K/V heads, S " + std::to_string(setting.sequence) +
         ", recompute " + std::to_string(static_cast<int>(setting.recompute));
}

void expect_equal(const formulas::Traffic& one, const formulas::Traffic& other, const std::vector<Purpose>& but,
                  const std::string& where) {
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    if (std::ranges::find(but, purpose) != but.end()) continue;
    EXPECT_EQ(one.forward[purpose], other.forward[purpose]) << name(purpose) << " forward, " << where;
    EXPECT_EQ(one.backward[purpose], other.backward[purpose]) << name(purpose) << " backward, " << where;
  }
}

TEST(Forecasts, AreWhatTheScheduleCountsUnderEveryLayout) {
  for (const int ranks : {1, 2, 4, 8}) {
    std::size_t counted = 0;
    for (const Layout& layout : theory::all_layouts(ranks)) {
      for (const Setting& setting : settings(even_models(), 8, 64)) {
        if (!why_impossible(setting, layout).empty()) continue;
        const std::string where = describe(setting, layout);
        const CountedOfAll all = count_all(setting, layout);
        const theory::StepCounts counts = theory::step_counts({setting, layout});
        expect_equal(counts.traffic, all.traffic, {}, where);
        EXPECT_NEAR(counts.flops.total(), all.most_flops, 1e-12 * all.most_flops) << where;
        // Small sums, for which ranks choose an algorithm, aren't in the formulas.
        const formulas::Traffic table = formulas::step(setting, layout, formulas::even_remote_rows(setting, layout));
        expect_equal(table, all.traffic, {Purpose::other}, where);
        expect_equal(theory::sum(theory::step_flows(setting, layout)), table, {Purpose::other}, where);
        ++counted;
      }
    }
    EXPECT_GE(counted, settings(even_models(), 8, 64).size()) << ranks;
  }
}

TEST(Forecasts, OfFlopsAreThoseOfTheFormulasByPart) {
  for (const Layout& layout : theory::all_layouts(4)) {
    for (const Setting& setting : settings(even_models(), 8, 64)) {
      if (!why_impossible(setting, layout).empty()) continue;
      const theory::StepFlops counted = theory::step_counts({setting, layout}).flops;
      const theory::StepFlops formula = theory::most_flops(setting, layout);
      const auto expect_near = [&](double of_counts, double of_formula) {
        EXPECT_NEAR(of_counts, of_formula, 1e-12 * of_formula) << describe(setting, layout);
      };
      for (const auto pass : {&theory::StepFlops::forward, &theory::StepFlops::backward}) {
        expect_near((counted.*pass).attention_linear, (formula.*pass).attention_linear);
        expect_near((counted.*pass).attention_core, (formula.*pass).attention_core);
        expect_near((counted.*pass).mlp, (formula.*pass).mlp);
        expect_near((counted.*pass).head, (formula.*pass).head);
      }
    }
  }
}

TEST(Forecasts, CountThePairsAndKeysThatWindowsLeave) {
  const ModelConfig full = small_config(64, 3, 8, 4, 8, 96, 128);
  const ModelConfig config = with_windows({7, 0, 40}, full);
  for (const int ranks : {1, 3, 4}) {
    for (const Layout& layout : theory::all_layouts(ranks)) {
      const ModelCase of{.config = config, .batch = 12, .sequence = 61, .dtype = DType::bf16, .recompute = Recompute::full};
      if (!why_impossible(of.setting(), layout).empty()) continue;
      const std::string where = describe(of.setting(), layout);
      const auto [traffic, counted] = theory::step_counts({of.setting(), layout});
      const auto [all, most] = count_all(of.setting(), layout);
      EXPECT_NEAR(counted.total(), most, 1e-12 * most) << where;
      expect_equal(traffic, all, {Purpose::embedding}, where);
      ModelCase without = of;
      without.config = full;
      const theory::StepFlops more = theory::step_counts({without.setting(), layout}).flops;
      EXPECT_LT(counted.forward.attention_core, more.forward.attention_core) << where;
      EXPECT_EQ(counted.forward.attention_linear, more.forward.attention_linear) << where;
      // The formulas' rank that computes most, where tokens spread evenly.
      ModelCase even = of;
      even.sequence = 64;
      if (!why_impossible(even.setting(), layout).empty() || ranks == 3) continue;
      const theory::StepFlops formula = theory::most_flops(even.setting(), layout);
      const auto [moved, again] = theory::step_counts({even.setting(), layout});
      const formulas::Traffic table = formulas::step(even.setting(), layout, formulas::even_remote_rows(even.setting(), layout));
      expect_equal(table, moved, {Purpose::other}, where);
      expect_equal(theory::sum(theory::step_flows(even.setting(), layout)), moved, {Purpose::other}, where);
      EXPECT_NEAR(again.forward.attention_core, formula.forward.attention_core, 1e-12 * formula.forward.attention_core) << where;
      EXPECT_NEAR(again.backward.attention_core, formula.backward.attention_core, 1e-12 * formula.backward.attention_core)
          << where;
    }
  }
}

TEST(Forecasts, TellRanksApartByTheKeysThatTheyTakeAndGive) {
  // Three ranks of as many tokens take 3, 5 and 3 keys from others, and give 3, 4 and 4.
  const ModelConfig config = with_windows({4}, small_config(48, 1, 6, 6, 8, 96, 96));
  const ModelCase of{.config = config, .batch = 1, .sequence = 12, .dtype = DType::f32};
  for (const char* layout : {"sp=3", "tsp=3", "zero3=3"}) {
    const Layout on = Layout::parse(layout);
    const theory::Traffic counted = theory::step_counts({of.setting(), on}).traffic;
    expect_equal(counted, count_all(of.setting(), on).traffic, {}, layout);
    EXPECT_EQ(counted.forward[Purpose::kv], 2U * 11 * 48 * 4) << layout;
  }
}

TEST(Forecasts, CountRanksThatDifferEachByItself) {
  // Neither tokens, heads, rows nor the vocabulary divide evenly.
  const std::vector<ModelConfig> models = {
      small_config(64, 2, 12, 4, 8, 61, 101), small_config(64, 2, 24, 12, 8, 97, 103, true), small_gpt2_config(2, 12, 8, 61, 97),
      with_sizes({{.head_dim = 4, .kv_heads = 12}, {.kv_heads = 6, .intermediate = 50}}, small_config(64, 1, 12, 4, 8, 61, 101))};
  std::size_t several = 0;
  for (const int ranks : {3, 4, 6, 8}) {
    for (const Layout& layout : theory::all_layouts(ranks)) {
      for (const Setting& setting : settings(models, 24, 47)) {
        if (!why_impossible(setting, layout).empty()) continue;
        if (ranks > 4 && setting.recompute != Recompute::none) continue;  // it takes long
        const std::string where = describe(setting, layout);
        const CountedOfAll all = count_all(setting, layout);
        const theory::StepCounts counts = theory::step_counts({setting, layout});
        expect_equal(counts.traffic, all.traffic, {Purpose::embedding}, where);
        EXPECT_NEAR(counts.flops.total(), all.most_flops, 1e-12 * all.most_flops) << where;
        if (theory::classes_of({setting, layout}).size() > 1) ++several;
      }
    }
  }
  EXPECT_GT(several, 50U);
}

TEST(Forecasts, OfTheHeadUnderTpCountEachRanksTokens) {
  // 5 tokens over 8 ranks: 2·B·S·β_l·(T − 1) bytes of log-sum-exps, whichever ranks merge them.
  const Layout layout = Layout::parse("tp=8");
  for (const std::size_t sequence : {1U, 5U, 13U}) {
    const ModelCase of{.config = find_config("nano").config, .batch = 1, .sequence = sequence, .dtype = DType::f32};
    const theory::Traffic counted = theory::step_counts({of.setting(), layout}).traffic;
    EXPECT_EQ(counted.forward[Purpose::head], 2 * sequence * 4 * 7);
    expect_equal(counted, count_all(of.setting(), layout).traffic, {}, describe(of.setting(), layout));
  }
}

TEST(Forecasts, KnowTheNodes) {
  const Setting setting = settings(even_models(), 8, 64).front();
  constexpr int kNodes = 2;
  for (const Layout& layout : theory::all_layouts(8)) {
    if (!why_impossible(setting, layout).empty()) continue;
    theory::Traffic sum;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      PhantomOptions like;
      for (int other = 0; other < layout.ranks(); ++other)
        like.peers.push_back({.node = other / 4, .views = other / 4 == rank / 4});
      sum += count(setting, layout, rank, like).traffic;
    }
    expect_equal(theory::step_counts({setting, layout}, {.nodes = kNodes}).traffic, sum, {}, describe(setting, layout));
  }
}

TEST(Forecasts, AskOneRankWhereAllDoTheSame) {
  const Setting setting = settings(even_models(), 8, 64).front();
  EXPECT_EQ(theory::classes_of({setting, Layout::parse("tsp=4")}).size(), 1U);
  EXPECT_EQ(theory::classes_of({setting, Layout::parse("dp=2,tp=2,sp=2")}).size(), 1U);
  // Four K/V heads over eight ranks: every other rank owns one.
  EXPECT_EQ(theory::classes_of({setting, Layout::parse("tsp=8")}).size(), 2U);
}

}  // namespace
}  // namespace tsprun::detail::test::forecasts_test
