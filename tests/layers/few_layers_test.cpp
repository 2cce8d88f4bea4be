// Steps of few layers, and what their programs say, beside those of all.
#include "layers/theory/few_layers.h"

#include "core/kernels/parallel.h"
#include "layers/theory/rank_figures.h"
#include "layers/theory/remarks.h"
#include "layers/theory/simulate.h"
#include "tests/layers/model_run.h"
#include "tests/layers/simulate_support.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tsprun::detail::test::few_layers_test {
namespace {

using simulate_support::machine;
using simulate_support::setting;

TEST(FewLayers, StandForMany) {
  for (const auto& [layout, layers] : {std::pair("tsp=8", 64U), std::pair("tsp=8", 65U), std::pair("zero3=16", 64U),
                                       std::pair("dp=2,tsp=8", 64U), std::pair("tp=2,sp=4", 65U)}) {
    SCOPED_TRACE(testing::Message() << layout << ", " << layers);
    theory::MeshSetting of = setting(layout, 16, 512);
    of.setting.model.layers = layers;
    const theory::Simulated all = theory::simulate(of, machine(), {.trace = true});  // of which every layer is played
    const theory::Simulated few = theory::simulate(of, machine(), {.binds = true});
    EXPECT_EQ(all.layers, layers);
    EXPECT_EQ(few.layers, 6 + layers % 2);
    EXPECT_NEAR(few.seconds, all.seconds, 2e-3 * all.seconds);
    EXPECT_NEAR(few.compute_seconds, all.compute_seconds, 2e-3 * all.seconds);
    EXPECT_NEAR(few.exposed_seconds, all.exposed_seconds, 2e-3 * all.seconds);
    EXPECT_NEAR(few.flops, all.flops, 1e-12 * all.flops);
    EXPECT_EQ(few.memory_peaks.total, all.memory_peaks.total);
    EXPECT_EQ(few.fullest, all.fullest);
    for (std::size_t purpose = 0; purpose < kPurposes; ++purpose) {
      if (static_cast<Purpose>(purpose) == Purpose::other) continue;  // folded, a root's sum is played by the direct algorithm
      EXPECT_EQ(few.received[purpose], all.received[purpose]) << tsprun::name(static_cast<Purpose>(purpose));
    }
    EXPECT_NEAR(static_cast<double>(few.messages), static_cast<double>(all.messages), 1e-3 * static_cast<double>(all.messages));
    EXPECT_FALSE(few.binds.empty());
    const theory::Simulated forward = theory::simulate(of, machine(), {.training = false});
    const theory::Simulated all_forward = theory::simulate(of, machine(), {.training = false, .trace = true});
    EXPECT_NEAR(forward.seconds, all_forward.seconds, 2e-3 * all_forward.seconds);
    EXPECT_EQ(forward.received[static_cast<std::size_t>(Purpose::weights)],
              all_forward.received[static_cast<std::size_t>(Purpose::weights)]);
    ASSERT_EQ(few.links.size(), all.links.size());
    for (std::size_t i = 0; i < all.links.size(); ++i) {
      EXPECT_NEAR(few.links[i].bytes, all.links[i].bytes, 1e-3 * all.links[i].bytes) << all.links[i].kind;
      EXPECT_NEAR(few.links[i].busy, all.links[i].busy, 2e-3) << all.links[i].kind;
    }
  }
}

TEST(FewLayers, ArePlayedAlikeOnAnyNumberOfThreads) {
  theory::MeshSetting of = setting("dp=2,tsp=8", 16, 512);
  of.setting.model.layers = 64;
  const theory::Simulated one = theory::simulate(of, machine(), {.binds = true});
  ASSERT_LT(one.layers, 64U);
  for (const std::size_t threads : {2U, 5U}) {
    const theory::Simulated more = theory::simulate(of, machine(), {.binds = true, .threads = threads});
    EXPECT_EQ(more.seconds, one.seconds);
    EXPECT_EQ(more.exposed_seconds, one.exposed_seconds);
    EXPECT_EQ(more.messages, one.messages);
    EXPECT_EQ(more.flops, one.flops);
    EXPECT_EQ(more.fullest, one.fullest);
    EXPECT_EQ(more.memory_peaks.total, one.memory_peaks.total);
    EXPECT_EQ(more.played, one.played);
    EXPECT_EQ(more.binds, one.binds);
    EXPECT_EQ(more.received, one.received);
    EXPECT_EQ(more.layers_difference, one.layers_difference);
    ASSERT_EQ(more.links.size(), one.links.size());
    for (std::size_t i = 0; i < one.links.size(); ++i) EXPECT_EQ(more.links[i].bytes, one.links[i].bytes);
  }
  theory::Machine unstated = machine();
  unstated.flops_bf16.reset();
  EXPECT_THROW(theory::simulate(of, unstated, {.threads = 3}), Error);
}

TEST(FewLayers, SayHowMuchTheirGrowthDiffers) {
  theory::MeshSetting of = setting("tsp=8");
  of.setting.model.layers = 64;
  kernels::Pool threads;
  const auto found = [&](double last) {
    return theory::from_few_layers(of, threads, [&](std::size_t layers) {
      theory::Simulated step;
      step.seconds = layers == 6 ? last : 1 + static_cast<double>(layers);
      return step;
    });
  };
  EXPECT_EQ(found(7)->step.layers_difference, 0);
  EXPECT_EQ(found(7)->step.seconds, 65);
  EXPECT_NEAR(found(7.02)->step.layers_difference, 0.01, 1e-4);
  EXPECT_NEAR(found(7.02)->step.seconds, 7.02 + 29 * 2.01, 1e-9);
  EXPECT_EQ(found(7.02)->seconds_by_first_growth, 65);
  EXPECT_EQ(found(7.02)->fewest_seconds, 3);
  EXPECT_EQ(theory::seconds_by_first_growth(of, 3, 5), 65);
  for (const double last : {6.9, 7.1, 5.0, 4.9}) EXPECT_FALSE(found(last)) << last;

  EXPECT_EQ(theory::layers_remark(64, 64, 0), "");
  EXPECT_EQ(theory::layers_remark(6, 64, 0.001), "steps of at most 6 of the 64 layers were played, and grow evenly");
  EXPECT_EQ(theory::layers_remark(6, 64, 0.016),
            "steps of at most 6 of the 64 layers were played, and what two more layers take differs by 1.6 %");
}

TEST(FewLayers, DontStandForUnlikeOnes) {
  theory::MeshSetting of = setting("tsp=8", 16, 1024);
  of.setting.model.layers = 64;
  std::vector<LayerSpec> layers(64, of.setting.model.layer(0));
  for (std::size_t layer = 0; layer < layers.size(); layer += 2) layers[layer].window = 128;
  of.setting.model.specs = LayerSpecs(layers);
  EXPECT_EQ(theory::simulate(of, machine(), {}).layers, 64U);
}

// Of large models: small sums take other buffers of collectives for few layers than for all, which counts in small ones.
TEST(RankFigures, OfFewLayersSayThoseOfAllOnEveryRank) {
  for (const auto& [layout, layers] :
       {std::pair("tsp=8", 64U), std::pair("zero3=16", 64U), std::pair("dp=2,tsp=8", 65U), std::pair("tp=2,sp=4", 65U)}) {
    const ModelCase large{
        .config = small_config(8192, layers, 64, 8, 128, 28672, 131072), .batch = 16, .sequence = 8192, .dtype = DType::bf16};
    const theory::MeshSetting of{.setting = large.setting(), .layout = Layout::parse(layout)};
    const theory::Growth growth = theory::growth_of(of);
    const auto figures = [&](std::size_t recorded, int rank) {
      theory::PeakOptions how;
      how.nodes = of.layout.ranks() / 4;
      return theory::figures_of(theory::record_step(theory::with_layers(of, recorded), rank, how, 2, false), machine(), {},
                                theory::what_ifs(machine(), 0));
    };
    for (int rank = 0; rank < of.layout.ranks(); ++rank) {
      const theory::RankFigures all = figures(layers, rank);
      const theory::RankFigures found = theory::grown(figures(growth.few, rank), figures(growth.more, rank), growth.times);
      EXPECT_TRUE(all.is_nearly(found)) << layout << ", " << rank;
      ASSERT_EQ(found.kernels_without.size(), all.kernels_without.size());
      for (std::size_t i = 0; i < all.kernels_without.size(); ++i)
        EXPECT_NEAR(found.kernels_without[i], all.kernels_without[i], 1e-9 * all.kernels);
    }
  }
}

TEST(RankFigures, GrowEvenly) {
  theory::RankFigures few{.flops = 3, .kernels = 5, .kernels_without = {1, 2}};
  theory::RankFigures more{.flops = 4, .kernels = 7, .kernels_without = {1, 4}};
  few.peaks.total = few.peaks[Category::parameters] = 1000;
  more.peaks.total = more.peaks[Category::parameters] = 1300;
  few.peaks[Category::workspace] = 100;
  more.peaks[Category::workspace] = 90;  // falls
  few.received[0] = 10;
  more.received[0] = 30;
  const theory::RankFigures all = theory::grown(few, more, 4);
  EXPECT_EQ(all.peaks.total, 2500U);
  EXPECT_EQ(all.peaks[Category::parameters], 2500U);
  EXPECT_EQ(all.peaks[Category::workspace], 50U);
  EXPECT_EQ(all.received[0], 110U);
  EXPECT_EQ(all.flops, 8);
  EXPECT_EQ(all.kernels, 15);
  EXPECT_EQ(all.kernels_without, (std::vector<double>{1, 12}));
}

TEST(RankFigures, AreNearlyThoseWithAsManyBytesAndNearlyTheSamePeaks) {
  theory::RankFigures one;
  one.peaks.total = 10'000'000;
  one.peaks[Category::communication] = 4'000'000;
  one.received[2] = 70;
  EXPECT_TRUE(one.is_nearly(one));
  const auto differs = [&](const auto& change) {
    theory::RankFigures other = one;
    change(other);
    return !one.is_nearly(other);
  };
  EXPECT_FALSE(differs([](theory::RankFigures& of) { of.peaks[Category::communication] -= 100; }));
  EXPECT_TRUE(differs([](theory::RankFigures& of) { of.peaks[Category::communication] -= 101; }));
  EXPECT_TRUE(differs([](theory::RankFigures& of) { of.peaks.total += 101; }));
  EXPECT_TRUE(differs([](theory::RankFigures& of) { of.received[2] += 1; }));
  EXPECT_TRUE(differs([](theory::RankFigures& of) { of.flops += 1e-3; }));
  EXPECT_TRUE(differs([](theory::RankFigures& of) { of.kernels += 1e-3; }));
}

}  // namespace
}  // namespace tsprun::detail::test::few_layers_test
