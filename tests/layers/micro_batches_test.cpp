// Steps of several micro-batches beside steps of the whole batch: gradients under every layout, recomputation mode and dtype,
// what moves, and what is held.
#include "layers/layout/check_layout.h"
#include "layers/theory/flows.h"
#include "tests/layers/model_run.h"
#include "tests/layers/reference_support.h"
#include "tests/layers/step_formulas.h"
#include "tests/support/each_axis.h"
#include "transport/cause.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::micro_batches_test {
namespace {

std::vector<Layout> layouts() {
  return each_axis(2, {Layout::tsp(1), Layout::tsp(4), Layout::parse("zero3=3"), Layout::parse("tp=4"),
                       Layout::parse("sp=3").with(SequenceExchange::ring), Layout::parse("tp=2,sp=2"),
                       Layout::parse("tp=2,tsp=2"), Layout::parse("tp=2,sp=2").with(TensorExchange::sequence),
                       Layout::parse("dp=2,tsp=2"), Layout::parse("dp=2,zero3=2"), Layout::parse("dp=2,tp=2,tsp=2"),
                       Layout::parse("dp=2,tp=2"), Layout::parse("dp=2,tp=2,sp=2").with(SequenceExchange::ulysses)});
}

/// Models of both kinds: K/V heads that tp copies, an uneven vocabulary; biases, learned positions, dropout, tied embeddings; a
/// vocabulary so large that activations are gathered.
std::vector<ModelCase> cases() {
  return {{.config = small_config(24, 2, 8, 2, 4, 21, 41), .batch = 12, .sequence = 13},
          {.config = small_gpt2_config(2, 8, 3, 21, 40), .batch = 12, .sequence = 11},
          {.config = small_config(16, 2, 8, 1, 4, 13, 600, true), .batch = 12, .sequence = 5}};
}

ModelCase in(ModelCase of, std::size_t micro_batches) {
  of.micro_batches = micro_batches;
  return of;
}

/// Each layout meets each model, in either number of micro-batches, and each recomputation mode: another one with each model.
TEST(MicroBatches, GradientsEqualTheWholeBatchsUnderEveryLayout) {
  constexpr std::array modes = {Recompute::none, Recompute::selective, Recompute::full};
  std::size_t turn = 0;
  for (ModelCase of : cases()) {
    std::vector<ModelRun> whole;
    for (const Recompute recompute : modes) {
      of.recompute = recompute;
      whole.push_back(run_model(of, Layout::tsp(1)));
    }
    std::size_t mode = turn++;
    for (const Layout& layout : layouts()) {
      mode = (mode + 1) % modes.size();
      of.recompute = modes[mode];
      for (const std::size_t M : {2U, 3U}) {
        const std::string where = layout.label() + ", " + in(of, M).describe();
        const ModelRun run = run_model(in(of, M), layout);
        EXPECT_NEAR(run.loss, whole[mode].loss, 1e-12 * whole[mode].loss) << where;
        EXPECT_NEAR(run.gradient_norm, whole[mode].gradient_norm, 1e-12 * whole[mode].gradient_norm) << where;
        expect_close(run.gradients, whole[mode].gradients, 1e-12, where);
      }
    }
  }
}

TEST(MicroBatches, GradientsEqualTheWholeBatchsInSmallerTypes) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 2e-5}, {DType::bf16, 2e-2}}) {
    ModelCase of = cases().front();
    of.config.hidden = 64;
    of.dtype = dtype;
    const ModelRun whole = run_model(of, Layout::tsp(1));
    for (const Layout& layout : layouts())
      expect_close(run_model(in(of, 3), layout).gradients, whole.gradients, tolerance, layout.label());
  }
}

/// Received bytes beside the formulas, phantoms and the flows; `other` beside phantoms alone.
TEST(MicroBatches, ReceiveWhatTheFormulasSay) {
  for (ModelCase of : cases()) {
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      of.recompute = recompute;
      for (const Layout& layout : layouts()) {
        const ModelCase parts = in(of, 3);
        const std::string where = layout.label() + ", " + parts.describe();
        const ModelRun run = run_model(parts, layout);
        expect_counted(run, where);
        const formulas::Traffic table = formulas::step(parts.setting(), layout, 0);
        const formulas::Traffic flows = theory::sum(theory::step_flows(parts.setting(), layout));
        for (int i = 0; i < kPurposes; ++i) {
          const auto purpose = static_cast<Purpose>(i);
          // Which rows move follows from the ids, but under plain tp.
          if (purpose == Purpose::other || (purpose == Purpose::embedding && !layout.cuts_vocabulary_over_tensor())) continue;
          std::uint64_t forward = 0;
          std::uint64_t backward = 0;
          for (const TrafficCounters& rank : run.forward) forward += rank.received[i];
          for (const TrafficCounters& rank : run.backward) backward += rank.received[i];
          EXPECT_EQ(forward, table.forward[purpose]) << name(purpose) << " forward, " << where;
          EXPECT_EQ(backward, table.backward[purpose]) << name(purpose) << " backward, " << where;
          EXPECT_EQ(flows.forward[purpose], table.forward[purpose]) << name(purpose) << " forward, flows.h, " << where;
          EXPECT_EQ(flows.backward[purpose], table.backward[purpose]) << name(purpose) << " backward, flows.h, " << where;
        }
      }
    }
  }
}

/// Activations are those of one micro-batch, gradients those of one store, and a rank holds what its phantom forecasts.
TEST(MicroBatches, HoldTheActivationsOfOne) {
  for (const ModelCase& of : cases()) {
    for (const Layout& layout : layouts()) {
      const ModelCase parts = in(of, 3);
      const std::string where = layout.label() + ", " + parts.describe();
      const ModelRun run = run_model(parts, layout);
      const ModelRun whole = run_model(of, layout);
      const std::uint64_t id_bytes = layout.cuts_vocabulary_over_tensor() ? sizeof(std::int64_t) : kTokenBytes;
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        const auto me = static_cast<std::size_t>(rank);
        const int t = layout.place(layout.tensor_axis(), rank);
        const int p = layout.place(layout.token_axis(), rank);
        const CategoryBytes& peak = run.peaks[me];
        EXPECT_EQ(peak[Category::activations], formulas::activation_bytes(parts.setting(), layout, t, p, id_bytes)) << where;
        EXPECT_LT(2 * peak[Category::activations], whole.peaks[me][Category::activations]) << where;
        EXPECT_EQ(peak[Category::gradients], whole.peaks[me][Category::gradients]) << where;
        EXPECT_EQ(peak, run.forecast[me]) << where;
      }
    }
  }
}

TEST(MicroBatches, NeitherThreadsNorAlgorithmsChangeABit) {
  for (const Layout& layout : layouts()) {
    ModelCase of = in(cases().front(), 3);
    of.dtype = DType::f32;
    const ModelRun once = run_model(of, layout);
    of.threads = 2;
    of.algorithms = "all_gather=ring,reduce_scatter=ring,all_reduce=ring,reduce=ring";
    const ModelRun again = run_model(of, layout);
    EXPECT_EQ(once.loss, again.loss) << layout.label();
    EXPECT_EQ(once.gradients, again.gradients) << layout.label();
  }
}

TEST(MicroBatches, ThatDontDivideTheBatchAreRefused) {
  for (const char* layout : {"tsp=2", "dp=2"}) {
    try {
      run_model(in(cases().front(), 5), Layout::parse(layout));
      FAIL() << layout;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("5 micro-batches"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(why_no_micro_batches(12, 6, Layout::parse("dp=2")), "");
  EXPECT_EQ(why_no_micro_batches(12, 5, Layout::tsp(4)),
            "--micro-batches 5 doesn't divide --batch 12; try --micro-batches 4 or --batch 15");
  EXPECT_EQ(why_no_micro_batches(12, 4, Layout::parse("dp=2,tsp=2")),
            "--micro-batches 4 doesn't divide the 6 sequences of --batch 12 that each rank of dp=2 has; try --micro-batches 3 or "
            "--batch 16");
}

}  // namespace
}  // namespace tsprun::detail::test::micro_batches_test
