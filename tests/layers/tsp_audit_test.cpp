// Traffic and memory of a training step under TSP against the formulas: as integers, by purpose, forward and backward.
#include "layers/theory/layouts.h"
#include "layers/theory/traffic.h"
#include "tests/layers/model_run.h"
#include "tests/layers/step_formulas.h"

#include <gtest/gtest.h>

namespace tsprun::detail::test::tsp_audit_test {
namespace {

formulas::PurposeBytes received(const std::vector<TrafficCounters>& ranks) {
  formulas::PurposeBytes sum;
  for (const TrafficCounters& rank : ranks) {
    for (int i = 0; i < kPurposes; ++i) sum[static_cast<Purpose>(i)] += rank.received[i];
  }
  return sum;
}

std::vector<ModelCase> cases() {
  std::vector<ModelCase> all;
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    all.push_back({.config = small_config(24, 2, 8, 8, 4, 21, 40), .batch = 2, .sequence = 29, .recompute = recompute});
    all.push_back({.config = small_config(24, 3, 8, 2, 6, 23, 41, true),
                   .batch = 1,
                   .sequence = 37,
                   .dtype = DType::f32,
                   .recompute = recompute});
    all.push_back({.config = small_config(16, 1, 8, 4, 4, 13, 300),
                   .batch = 1,
                   .sequence = 11,
                   .dtype = DType::bf16,
                   .recompute = recompute});
    all.push_back({.config = small_config(16, 2, 8, 1, 4, 13, 17), .batch = 3, .sequence = 5, .recompute = recompute});
    all.push_back({.config = small_gpt2_config(2, 8, 3, 21, 40), .batch = 2, .sequence = 29, .recompute = recompute});
    all.push_back({.config = with_windows({5, 0, 30}, small_config(16, 3, 8, 2, 4, 13, 17)),
                   .batch = 2,
                   .sequence = 43,
                   .recompute = recompute});
  }
  return all;
}

TEST(TspAudit, ReceivedBytesEqualTheFormulasByPurpose) {
  for (const ModelCase& of : cases()) {
    for (const int ranks : {1, 2, 4, 8}) {
      const std::string where = of.describe() + ", D " + std::to_string(ranks);
      const ModelRun run = run_model(of, ranks);
      expect_counted(run, where);
      const std::uint64_t rows = formulas::remote_rows(BatchData(of).ids, of.setting(), Layout::tsp(ranks));
      const formulas::Traffic table = formulas::tsp_step(of.setting(), ranks, rows);
      const formulas::PurposeBytes forward = received(run.forward);
      const formulas::PurposeBytes backward = received(run.backward);
      for (int i = 0; i < kPurposes; ++i) {
        const auto purpose = static_cast<Purpose>(i);
        if (purpose == Purpose::other) continue;
        EXPECT_EQ(forward[purpose], table.forward[purpose]) << name(purpose) << " forward, " << where;
        EXPECT_EQ(backward[purpose], table.backward[purpose]) << name(purpose) << " backward, " << where;
      }
    }
  }
}

TEST(TspAudit, MemoryOfParametersGradientsOptimizerAndActivationsIsExact) {
  for (const ModelCase& of : cases()) {
    for (const int ranks : {1, 2, 4, 8}) {
      const std::string where = of.describe() + ", D " + std::to_string(ranks);
      const ModelRun run = run_model(of, ranks);
      const Zigzag cut(of.sequence, ranks);
      const ElementBytes bytes = ElementBytes::of(of.dtype);
      for (int rank = 0; rank < ranks; ++rank) {
        const CategoryBytes& peak = run.peaks[static_cast<std::size_t>(rank)];
        const std::uint64_t elements = theory::held({.setting = of.setting(), .layout = Layout::tsp(ranks)}, {0, rank}).total();
        EXPECT_EQ(peak[Category::parameters], elements * bytes.element) << where;
        EXPECT_EQ(peak[Category::gradients], elements * bytes.accumulated) << where;
        EXPECT_EQ(peak[Category::optimizer], elements * bytes.accumulated * (of.dtype == DType::bf16 ? 3U : 2U)) << where;
        EXPECT_EQ(peak[Category::activations], formulas::activation_bytes(of.setting(), cut.tokens(rank), kTokenBytes)) << where;
      }
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::tsp_audit_test
