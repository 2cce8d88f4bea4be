// Traffic of a training step under tp, sp, zero3 and their products against the formulas, as integers summed over ranks, by
// purpose; parameters and saved activations of each rank against the formulas of docs/algorithms.md, "Memory".
#include "layers/layout/heads.h"
#include "layers/theory/flows.h"
#include "layers/theory/traffic.h"
#include "tests/layers/model_run.h"
#include "tests/layers/step_formulas.h"
#include "tests/support/each_axis.h"

#include <gtest/gtest.h>

#include <utility>

namespace tsprun::detail::test::layouts_audit_test {
namespace {

formulas::PurposeBytes received(const std::vector<TrafficCounters>& ranks) {
  formulas::PurposeBytes sum;
  for (const TrafficCounters& rank : ranks) {
    for (int i = 0; i < kPurposes; ++i) sum[static_cast<Purpose>(i)] += rank.received[i];
  }
  return sum;
}

/// Returns whether flows.h says what is received for a purpose: of embedding rows only where that doesn't depend on the ids, of
/// `other` only where no algorithm is chosen.
bool is_in_flows(Purpose purpose, const Layout& layout) {
  return purpose != Purpose::other && (purpose != Purpose::embedding || layout.cuts_vocabulary_over_tensor());
}

/// `table` beside what the ranks received, and beside what flows.h says; `other` may use any algorithm.
void expect_received(const ModelCase& of, const Layout& layout, const formulas::Traffic& table) {
  const std::string where = of.describe() + ", " + layout.label();
  const ModelRun run = run_model(of, layout);
  const formulas::Traffic step = theory::sum(theory::step_flows(of.setting(), layout));
  const formulas::PurposeBytes forward = received(run.forward);
  const formulas::PurposeBytes backward = received(run.backward);
  expect_counted(run, where);
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    if (purpose == Purpose::other) continue;
    EXPECT_EQ(forward[purpose], table.forward[purpose]) << name(purpose) << " forward, " << where;
    EXPECT_EQ(backward[purpose], table.backward[purpose]) << name(purpose) << " backward, " << where;
    if (!is_in_flows(purpose, layout)) continue;
    EXPECT_EQ(step.forward[purpose], table.forward[purpose]) << name(purpose) << " forward, flows.h, " << where;
    EXPECT_EQ(step.backward[purpose], table.backward[purpose]) << name(purpose) << " backward, flows.h, " << where;
  }
}

/// Tokens whose embedding row lives on another holder, from the ids.
std::uint64_t remote_rows(const ModelCase& of, const Layout& layout) {
  return formulas::remote_rows(BatchData(of).ids, of.setting(), layout);
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
    all.push_back({.config = as_family("qwen2", small_config(16, 1, 8, 4, 4, 13, 300)),
                   .batch = 1,
                   .sequence = 11,
                   .dtype = DType::bf16,
                   .recompute = recompute});
    all.push_back(
        {.config = as_family("qwen3", small_config(16, 2, 8, 1, 4, 13, 17)), .batch = 3, .sequence = 5, .recompute = recompute});
    all.push_back(
        {.config = as_family("phi3", small_config(16, 2, 8, 2, 4, 13, 17)), .batch = 2, .sequence = 7, .recompute = recompute});
    all.push_back({.config = small_gpt2_config(2, 8, 3, 21, 40), .batch = 2, .sequence = 29, .recompute = recompute});
    all.push_back({.config = small_unlike_config(2), .batch = 1, .sequence = 13, .recompute = recompute});
    all.push_back({.config = with_windows({5, 0, 30}, small_config(16, 3, 8, 2, 4, 13, 17)),
                   .batch = 2,
                   .sequence = 43,
                   .dtype = DType::bf16,
                   .recompute = recompute});
    all.push_back({.config = small_norms_config(4), .batch = 2, .sequence = 13, .recompute = recompute});
    all.push_back({.config = small_lending_config(4), .batch = 2, .sequence = 13, .recompute = recompute});
    all.push_back({.config = small_norms_config(2, Norm::layer, true),
                   .batch = 1,
                   .sequence = 13,
                   .dtype = DType::bf16,
                   .recompute = recompute});
  }
  return all;
}

using formulas::over_layers;

TEST(TensorParallelAudit, PlainReceivesWhatTheFormulasSay) {
  for (const ModelCase& of : cases()) {
    for (const int ranks : {1, 2, 8}) {
      const Layout layout{{{AxisKind::tp, ranks}}};
      formulas::Traffic table = over_layers(of.setting(), [&](const Setting& one) { return formulas::tp_block(one, ranks); }) +
                                formulas::rows_normed(of.setting(), ranks);
      table += formulas::tp_embedding(of.setting(), ranks);
      table += formulas::tp_head(of.setting(), ranks);
      expect_received(of, layout, table);
    }
  }
}

TEST(TensorParallelAudit, MegatronsSequenceParallelismReceivesWhatTheFormulasSay) {
  for (const ModelCase& of : cases()) {
    for (const int ranks : {2, 8}) {
      const Layout layout = Layout{{{AxisKind::tp, ranks}}}.with(TensorExchange::sequence);
      formulas::Traffic table =
          over_layers(of.setting(), [&](const Setting& one) { return formulas::tp_sequence_block(one, ranks, false); }) +
          formulas::rows_normed(of.setting(), ranks);
      table += formulas::embedding(of.setting(), remote_rows(of, layout));
      table += formulas::head(of.setting(), ranks);
      expect_received(of, layout, table);
    }
  }
}

TEST(SequenceParallelAudit, ReceivesWhatTheFormulasSay) {
  for (ModelCase of : cases()) {
    for (const int ranks : {2, 4}) {
      const Layout layout{{{AxisKind::sp, ranks}}};
      formulas::Traffic vocabulary = formulas::embedding(of.setting(), remote_rows(of, layout));
      vocabulary += formulas::head(of.setting(), ranks);
      const auto expect = [&](SequenceExchange exchange, formulas::Traffic (*block)(const Setting&, int)) {
        formulas::Traffic table = over_layers(of.setting(), [&](const Setting& one) { return block(one, ranks); });
        table += vocabulary;
        expect_received(of, layout.with(exchange), table);
      };
      expect(SequenceExchange::gather, formulas::sp_gather_block);
      expect(SequenceExchange::ring, formulas::sp_ring_block);
      expect(SequenceExchange::ulysses, formulas::sp_ulysses_block);
    }
  }
}

TEST(Zero3Audit, ReceivesWhatTheFormulasSay) {
  for (const ModelCase& of : cases()) {
    for (const int ranks : {2, 4}) {
      const Layout layout{{{AxisKind::zero3, ranks}}};
      formulas::Traffic table = over_layers(of.setting(), [&](const Setting& one) { return formulas::zero3_block(one, ranks); });
      table += formulas::embedding(of.setting(), remote_rows(of, layout));
      table += formulas::head(of.setting(), ranks);
      expect_received(of, layout, table);
    }
  }
}

/// Copies of the vocabulary's rows on the sequence axis have their gradients all-reduced.
formulas::Traffic copied_vocabulary(const ModelCase& of, int sequence) {
  const std::uint64_t bytes =
      2 * of.config.vocabulary * of.config.hidden * of.setting().bytes.accumulated * static_cast<std::uint64_t>(sequence - 1);
  formulas::Traffic traffic;
  traffic.backward[Purpose::embedding] = bytes;
  if (!of.config.tied_embeddings) traffic.backward[Purpose::head] = bytes;
  return traffic;
}

TEST(TensorTimesSequenceAudit, ReceivesWhatTheFormulasSay) {
  for (const ModelCase& of : cases()) {
    for (const auto& [tensor, sequence] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{2, 4}}) {
      const Layout layout{{{AxisKind::tp, tensor}, {AxisKind::sp, sequence}}};
      formulas::Traffic table =
          over_layers(of.setting(), [&, tensor = tensor, sequence = sequence](
                                        const Setting& one) { return formulas::tp_sp_block(one, tensor, sequence); }) +
          formulas::rows_normed(of.setting(), tensor);
      table += formulas::tp_embedding(of.setting(), tensor);
      table += formulas::tp_head(of.setting(), tensor);
      table += copied_vocabulary(of, sequence);
      expect_received(of, layout, table);
    }
  }
}

TEST(TensorTimesTspAudit, ReceivesWhatTheFormulasSay) {
  for (const ModelCase& of : cases()) {
    for (const auto& [tensor, sequence] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{2, 4}}) {
      const Layout layout{{{AxisKind::tp, tensor}, {AxisKind::tsp, sequence}}};
      formulas::Traffic table =
          over_layers(of.setting(), [&, tensor = tensor, sequence = sequence](
                                        const Setting& one) { return formulas::tp_tsp_block(one, tensor, sequence); }) +
          formulas::rows_normed(of.setting(), tensor);
      table += formulas::tp_embedding(of.setting(), tensor);
      table += formulas::tp_head(of.setting(), tensor);
      table += copied_vocabulary(of, sequence);
      expect_received(of, layout, table);
    }
  }
}

// --- memory ------------------------------------------------------------------------------------------------------------------

/// Returns the bytes that a rank keeps of a token's id and label. Where the vocabulary is cut over the tensor axis, ids aren't
/// kept.
std::uint64_t token_bytes(const Layout& layout) {
  return layout.cuts_vocabulary_over_tensor() ? sizeof(std::int64_t) : kTokenBytes;
}

/// Bytes that every rank of one replica holds and saves, beside the formulas, which stand beside theory's.
void expect_memory(const ModelCase& of, const Layout& layout, const ModelRun& run) {
  const Setting setting = of.setting();
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const std::string where = of.describe() + ", " + layout.label() + ", rank " + std::to_string(rank);
    const theory::MeshPlace place = theory::place_of(layout, rank);
    const std::uint64_t elements = formulas::held_elements(setting, layout, place.tensor, place.sequence, place.data);
    const std::uint64_t activations =
        formulas::activation_bytes(setting, layout, place.tensor, place.sequence, token_bytes(layout));
    const CategoryBytes& peak = run.peaks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(peak[Category::parameters], elements * setting.bytes.element) << where;
    EXPECT_EQ(peak[Category::gradients], elements * setting.bytes.accumulated) << where;
    const std::uint64_t states = formulas::state_elements(setting, layout, place.tensor, place.sequence, place.data);
    EXPECT_EQ(peak[Category::optimizer], states * setting.bytes.accumulated * (of.dtype == DType::bf16 ? 3U : 2U)) << where;
    EXPECT_EQ(peak[Category::activations], activations) << where;
    const theory::MeshSetting mesh{.setting = setting, .layout = layout};
    EXPECT_EQ(theory::held(mesh, place).total(), elements) << where;
    EXPECT_EQ(theory::held(mesh, place).states, states) << where;
    EXPECT_EQ(theory::activation_bytes(mesh, place, token_bytes(layout)), activations) << where;
  }
}

// The default table chooses neither for so few ranks and small sums.
TEST(LayoutsTraffic, OfSmallSumsFollowsTheirAlgorithm) {
  for (const char* algorithms : {"all_reduce=rooted", "all_reduce=ring"}) {
    for (const char* layout : {"tsp=4", "tp=2,sp=2", "dp=2,zero3=2"}) {
      ModelCase of = cases().front();
      of.batch *= 2;
      of.algorithms = algorithms;
      expect_counted(run_model(of, Layout::parse(layout)), std::string(layout) + ", " + algorithms);
    }
  }
}

TEST(LayoutsMemory, IsExactOnEveryRank) {
  for (const ModelCase& of : cases()) {
    for (const TensorExchange exchange : {TensorExchange::plain, TensorExchange::sequence}) {
      const auto expect = [&](const Layout& layout) { expect_memory(of, layout, run_model(of, layout)); };
      expect(Layout::parse("tp=4").with(exchange));
      expect(Layout::parse("tp=2,sp=4").with(exchange));
      if (exchange == TensorExchange::plain) expect(Layout::parse("sp=4"));
    }
  }
}

TEST(LayoutsMemory, ForecastsHoldUnderEveryScheme) {
  const std::vector<Layout> layouts = each_axis(
      4,
      {Layout::parse("zero3=3"), Layout::parse("tp=2,sp=2").with(SequenceExchange::ulysses), Layout::parse("tp=2,tsp=2"),
       Layout::parse("dp=2,tsp=2,tp=2").with(TensorExchange::sequence),
       Layout::parse("dp=2,tp=2,sp=2").with(SequenceExchange::ring), Layout::parse("dp=2,zero3=2"),
       Layout::parse("dp=2,tp=2,sp=2").with(DataSharing::zero1), Layout::parse("dp=2,zero3=2").with(DataSharing::zero1),
       Layout::parse("dp=2,tp=2,sp=2").with(DataSharing::zero3), Layout::parse("dp=2,tsp=2").with(DataSharing::zero3),
       Layout::parse("dp=2,shard=2").with(DataSharing::zero1), Layout::parse("dp=2,shard=2").with(DataSharing::zero3),
       Layout::parse("dp=2,shard=2,tp=2").with(DataSharing::zero3), Layout::parse("dp=2,shard=2,sp=2").with(DataSharing::zero3)});
  for (ModelCase of : cases()) {
    of.batch *= 4;
    for (const Layout& layout : layouts) {
      const std::string where = of.describe() + ", " + layout.label();
      const ModelRun run = run_model(of, layout);
      expect_memory(of, layout, run);
      expect_counted(run, where);
      const formulas::Traffic step = formulas::step(of.setting(), layout, 0);
      for (int i = 0; i < kPurposes; ++i) {
        const auto purpose = static_cast<Purpose>(i);
        if (!is_in_flows(purpose, layout)) continue;
        EXPECT_EQ(received(run.forward)[purpose], step.forward[purpose]) << name(purpose) << " forward, " << where;
        EXPECT_EQ(received(run.backward)[purpose], step.backward[purpose]) << name(purpose) << " backward, " << where;
      }
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::layouts_audit_test
