// The formulas by which `plan` forecasts traffic and FLOPs, beside what phantoms of all ranks count: for every layout that the
// table of axes allows, so a new axis is among them.
#include "core/context.h"
#include "core/rank/rank.h"
#include "layers/layout/check_layout.h"
#include "layers/layout/mesh.h"
#include "layers/theory/flops.h"
#include "layers/theory/flows.h"
#include "layers/theory/search.h"
#include "tests/layers/model_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace tsprun::detail::test::forecasts_test {
namespace {

/// What a phantom counts in one training step.
struct Counted {
  theory::Traffic traffic;
  double flops;
};

Counted count(const Setting& setting, const Layout& layout, int number) {
  Context phantom = make_phantom(number, layout.ranks());
  Rank rank(phantom);
  Mesh mesh(phantom.world(), layout);
  Model model(rank, mesh,
              {.config = setting.model, .dtype = setting.bytes.dtype(), .recompute = setting.recompute, .training = true});
  TokenBatch evenly;  // without ids: all are equally frequent
  evenly.batch = setting.batch;
  evenly.sequence = setting.sequence;
  model.forward_backward(evenly);
  return {.traffic = {.forward = theory::PurposeBytes::received(model.forward_traffic()),
                      .backward = theory::PurposeBytes::received(model.backward_traffic())},
          .flops = rank.compute().flops()};
}

/// Sizes that divide by eight: formulas spread tokens and their embedding rows evenly.
std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const ModelConfig& config : {small_config(64, 2, 8, 4, 8, 96, 128), small_config(64, 2, 8, 1, 8, 64, 4096, true),
                                    small_gpt2_config(2, 8, 8, 64, 128)}) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      const ModelCase of{.config = config, .batch = 8, .sequence = 64, .dtype = DType::bf16, .recompute = recompute};
      all.push_back(of.setting());
    }
  }
  return all;
}

TEST(Forecasts, AreWhatTheScheduleCountsUnderEveryLayout) {
  for (const int ranks : {1, 2, 4, 8}) {
    std::size_t counted = 0;
    for (const Layout& layout : theory::all_layouts(ranks)) {
      for (const Setting& setting : settings()) {
        if (!why_impossible(setting, layout).empty()) continue;
        const std::string where = layout.label() + ", " + std::to_string(setting.model.kv_heads) + " K/V heads, recompute " +
                                  std::to_string(static_cast<int>(setting.recompute));
        theory::Traffic sum;
        for (int rank = 0; rank < ranks; ++rank) {
          const Counted here = count(setting, layout, rank);
          sum += here.traffic;
          const double flops = theory::step_flops(setting, layout, theory::place_of(layout, rank)).total();
          EXPECT_NEAR(here.flops, flops, 1e-12 * flops) << where << ", rank " << rank;
        }
        const theory::Traffic forecast = theory::step_traffic(setting, layout);
        for (int i = 0; i < kPurposes; ++i) {
          const auto purpose = static_cast<Purpose>(i);
          if (purpose == Purpose::other) continue;  // small sums, for which ranks choose an algorithm
          EXPECT_EQ(sum.forward[purpose], forecast.forward[purpose]) << name(purpose) << " forward, " << where;
          EXPECT_EQ(sum.backward[purpose], forecast.backward[purpose]) << name(purpose) << " backward, " << where;
        }
        ++counted;
      }
    }
    EXPECT_GE(counted, settings().size()) << ranks;
  }
}

}  // namespace
}  // namespace tsprun::detail::test::forecasts_test
