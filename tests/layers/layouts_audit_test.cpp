// Traffic of a training step under tp, sp, zero3 and their products against the formulas, as integers summed over ranks, by
// purpose; parameters and saved activations of each rank against the formulas of docs/algorithms.md, "Memory".
#include "layers/layout/heads.h"
#include "layers/theory/flows.h"
#include "layers/theory/traffic.h"
#include "tests/layers/closed_formulas.h"
#include "tests/layers/model_run.h"
#include "tests/support/each_axis.h"

#include <gtest/gtest.h>

#include <utility>

namespace tsprun::detail::test::layouts_audit_test {
namespace {

theory::PurposeBytes received(const std::vector<TrafficCounters>& ranks) {
  theory::PurposeBytes sum;
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

/// `theory` beside what the ranks received, and beside what flows.h says; `other` may use any algorithm.
void expect_received(const ModelCase& of, const Layout& layout, const theory::Traffic& theory) {
  const std::string where = of.describe() + ", " + layout.label();
  const ModelRun run = run_model(of, layout);
  const theory::Traffic step = theory::step_traffic(of.setting(), layout);
  const theory::PurposeBytes forward = received(run.forward);
  const theory::PurposeBytes backward = received(run.backward);
  expect_counted(run, where);
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    if (purpose == Purpose::other) continue;
    EXPECT_EQ(forward[purpose], theory.forward[purpose]) << name(purpose) << " forward, " << where;
    EXPECT_EQ(backward[purpose], theory.backward[purpose]) << name(purpose) << " backward, " << where;
    if (!is_in_flows(purpose, layout)) continue;
    EXPECT_EQ(step.forward[purpose], theory.forward[purpose]) << name(purpose) << " forward, flows.h, " << where;
    EXPECT_EQ(step.backward[purpose], theory.backward[purpose]) << name(purpose) << " backward, flows.h, " << where;
  }
}

/// Tokens whose embedding row lives on another holder, from the ids.
std::uint64_t remote_rows(const ModelCase& of, const Layout& layout) {
  return theory::remote_rows(BatchData(of).ids, of.setting(), layout);
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
  }
  return all;
}

theory::Traffic blocks(const ModelCase& of, const theory::Traffic& one) { return one * of.config.layers; }

TEST(TensorParallelAudit, PlainReceivesWhatTheFormulasSay) {
  for (const ModelCase& of : cases()) {
    for (const int ranks : {1, 2, 8}) {
      const Layout layout{{{AxisKind::tp, ranks}}};
      theory::Traffic theory = blocks(of, theory::tp_block(of.setting(), ranks));
      theory += theory::tp_embedding(of.setting(), ranks);
      theory += theory::tp_head(of.setting(), ranks);
      expect_received(of, layout, theory);
    }
  }
}

TEST(TensorParallelAudit, MegatronsSequenceParallelismReceivesWhatTheFormulasSay) {
  for (const ModelCase& of : cases()) {
    for (const int ranks : {2, 8}) {
      const Layout layout = Layout{{{AxisKind::tp, ranks}}}.with(TensorExchange::sequence);
      theory::Traffic theory = blocks(of, theory::tp_sequence_block(of.setting(), ranks, false));
      theory += theory::embedding(of.setting(), remote_rows(of, layout));
      theory += theory::head(of.setting(), ranks, head_plan(of.setting()));
      expect_received(of, layout, theory);
    }
  }
}

TEST(SequenceParallelAudit, ReceivesWhatTheFormulasSay) {
  for (ModelCase of : cases()) {
    for (const int ranks : {2, 4}) {
      const Layout layout{{{AxisKind::sp, ranks}}};
      theory::Traffic vocabulary = theory::embedding(of.setting(), remote_rows(of, layout));
      vocabulary += theory::head(of.setting(), ranks, head_plan(of.setting()));
      const auto expect = [&](SequenceExchange exchange, const theory::Traffic& block) {
        theory::Traffic theory = blocks(of, block);
        theory += vocabulary;
        expect_received(of, layout.with(exchange), theory);
      };
      expect(SequenceExchange::gather, theory::sp_gather_block(of.setting(), ranks));
      expect(SequenceExchange::ring, theory::sp_ring_block(of.setting(), ranks));
      expect(SequenceExchange::ulysses, theory::sp_ulysses_block(of.setting(), ranks));
    }
  }
}

TEST(Zero3Audit, ReceivesWhatTheFormulasSay) {
  for (const ModelCase& of : cases()) {
    for (const int ranks : {2, 4}) {
      const Layout layout{{{AxisKind::zero3, ranks}}};
      theory::Traffic theory = blocks(of, theory::zero3_block(of.setting(), ranks));
      theory += theory::embedding(of.setting(), remote_rows(of, layout));
      theory += theory::head(of.setting(), ranks, head_plan(of.setting()));
      expect_received(of, layout, theory);
    }
  }
}

/// Copies of the vocabulary's rows on the sequence axis have their gradients all-reduced.
theory::Traffic copied_vocabulary(const ModelCase& of, int sequence) {
  const std::uint64_t bytes =
      2 * of.config.vocabulary * of.config.hidden * of.setting().bytes.accumulated * static_cast<std::uint64_t>(sequence - 1);
  theory::Traffic traffic;
  traffic.backward[Purpose::embedding] = bytes;
  if (!of.config.tied_embeddings) traffic.backward[Purpose::head] = bytes;
  return traffic;
}

TEST(TensorTimesSequenceAudit, ReceivesWhatTheFormulasSay) {
  for (const ModelCase& of : cases()) {
    for (const auto& [tensor, sequence] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{2, 4}}) {
      const Layout layout{{{AxisKind::tp, tensor}, {AxisKind::sp, sequence}}};
      theory::Traffic theory = blocks(of, theory::tp_sp_block(of.setting(), tensor, sequence));
      theory += theory::tp_embedding(of.setting(), tensor);
      theory += theory::tp_head(of.setting(), tensor);
      theory += copied_vocabulary(of, sequence);
      expect_received(of, layout, theory);
    }
  }
}

/// TSP within a slice: its weights and K/V, with the copies of K/V heads that tensor ranks have, and tp's activations.
theory::Traffic tp_tsp_block(const ModelCase& of, int tensor, int sequence) {
  const Setting setting = of.setting();
  const theory::Traffic dense = theory::tp_sp_block(setting, tensor, sequence);
  const std::size_t read = HeadCut(of.config.query_heads, of.config.kv_heads, tensor).kv_heads_read_by_all();
  const std::uint64_t copied = 2 * of.config.hidden * of.config.head_dim * (read - of.config.kv_heads);
  const std::uint64_t weights = (setting.block_parameters() + copied) * static_cast<std::uint64_t>(sequence - 1);
  theory::Traffic traffic;
  for (const Purpose purpose : {Purpose::kv, Purpose::activations}) {
    traffic.forward[purpose] = dense.forward[purpose];
    traffic.backward[purpose] = dense.backward[purpose];
  }
  traffic.forward[Purpose::weights] = traffic.backward[Purpose::weights] = weights * setting.bytes.element;
  traffic.backward[Purpose::gradients] = (weights + 2 * copied) * setting.bytes.accumulated;
  return traffic;
}

TEST(TensorTimesTspAudit, ReceivesWhatTheFormulasSay) {
  for (const ModelCase& of : cases()) {
    for (const auto& [tensor, sequence] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{2, 4}}) {
      const Layout layout{{{AxisKind::tp, tensor}, {AxisKind::tsp, sequence}}};
      theory::Traffic theory = blocks(of, tp_tsp_block(of, tensor, sequence));
      theory += theory::tp_embedding(of.setting(), tensor);
      theory += theory::tp_head(of.setting(), tensor);
      theory += copied_vocabulary(of, sequence);
      expect_received(of, layout, theory);
    }
  }
}

// --- memory ------------------------------------------------------------------------------------------------------------------

/// Holds what tensor rank t holds and saves: its heads and rows, K/V heads that its query heads read.
struct Share {
  std::size_t a;  // n_q·d
  std::size_t k;
  std::size_t f;
  std::size_t heads;
  std::size_t matrices;  // of the MLP

  Share(const ModelConfig& config, int t, int tensor) {
    const HeadCut cut(config.query_heads, config.kv_heads, tensor);
    heads = cut.query_heads(t).count;
    a = heads * config.head_dim;
    k = cut.kv_heads_read(t).count * config.head_dim;
    f = Chunks::balanced(tensor, config.intermediate).count(t);
    matrices = config.mlp == Mlp::swiglu ? 3 : 2;
  }
  std::uint64_t block_parameters(std::size_t h) const { return 2 * h * (a + k) + matrices * h * f; }
  /// Beside the two inputs.
  std::uint64_t saved(const Setting& setting) const {
    const auto& [element, accumulated, lse] = setting.bytes;
    if (setting.recompute == Recompute::full) return 0;
    if (setting.recompute == Recompute::selective) return element * a + 2 * lse * heads;
    return element * (2 * a + 2 * k + (matrices - 1) * f) + 2 * lse * heads;
  }
};

/// Elements of norms, biases and learned positions.
std::uint64_t on_every_rank(const ModelConfig& config) {
  std::uint64_t elements = 0;
  for (const Parameter& parameter : model_parameters(config)) {
    if (!parameter.is_matrix() || parameter.role == ParameterRole::positions) elements += parameter.elements();
  }
  return elements;
}

/// Returns the bytes that a rank keeps of a token's id and label. Where the vocabulary is cut over the tensor axis, ids aren't
/// kept.
std::uint64_t token_bytes(const Layout& layout) {
  return layout.cuts_vocabulary_over_tensor() ? sizeof(std::int64_t) : kTokenBytes;
}

void expect_memory(const ModelCase& of, const Layout& layout) {
  const Setting setting = of.setting();
  const auto& [element, accumulated, lse] = setting.bytes;
  const std::size_t h = of.config.hidden;
  const std::size_t L = of.config.layers;
  const ModelRun run = run_model(of, layout);
  for (int t = 0; t < layout.tensor(); ++t) {
    for (int s = 0; s < layout.sequence(); ++s) {
      const std::string where = of.describe() + ", " + layout.label() + ", rank " + std::to_string(t) + ", " + std::to_string(s);
      const Share share(of.config, t, layout.tensor());
      const std::size_t rows = of.batch * Zigzag(of.sequence, layout.sequence()).tokens(s);
      const std::size_t kept = layout.slices_tokens() ? Chunks::balanced(layout.tensor(), rows).count(t) : rows;
      const std::size_t V = layout.slices_tokens()
                                ? Chunks::balanced(layout.replica(), of.config.vocabulary).count(s * layout.tensor() + t)
                            : layout.tensor() > 1 ? Chunks::balanced(layout.tensor(), of.config.vocabulary).count(t)
                                                  : Chunks::balanced(layout.sequence(), of.config.vocabulary).count(s);
      const std::uint64_t elements =
          L * share.block_parameters(h) + on_every_rank(of.config) + (of.config.tied_embeddings ? 1 : 2) * V * h;
      const int rank = t * layout.sequence() + s;
      const CategoryBytes& peak = run.peaks[static_cast<std::size_t>(rank)];
      EXPECT_EQ(peak[Category::parameters], elements * element) << where;
      EXPECT_EQ(peak[Category::gradients], elements * accumulated) << where;
      EXPECT_EQ(peak[Category::optimizer], elements * accumulated * (of.dtype == DType::bf16 ? 3U : 2U)) << where;
      EXPECT_EQ(peak[Category::activations],
                rows * L * share.saved(setting) + kept * (L * 2 * h * element + h * element + lse + token_bytes(layout)))
          << where;
      const theory::MeshSetting mesh{.setting = setting, .layout = layout};
      const theory::MeshPlace place = theory::place_of(layout, t * layout.sequence() + s);
      EXPECT_EQ(theory::held(mesh, place).total(), elements) << where;
      EXPECT_EQ(theory::activation_bytes(mesh, place, token_bytes(layout)), peak[Category::activations]) << where;
    }
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
      expect_memory(of, Layout::parse("tp=4").with(exchange));
      expect_memory(of, Layout::parse("tp=2,sp=4").with(exchange));
    }
    expect_memory(of, Layout::parse("sp=4"));
  }
}

TEST(LayoutsMemory, ForecastsHoldUnderEveryScheme) {
  const std::vector<Layout> layouts =
      each_axis(4, {Layout::parse("zero3=3"), Layout::parse("tp=2,sp=2").with(SequenceExchange::ulysses),
                    Layout::parse("tp=2,tsp=2"), Layout::parse("dp=2,tsp=2,tp=2").with(TensorExchange::sequence),
                    Layout::parse("dp=2,tp=2,sp=2").with(SequenceExchange::ring), Layout::parse("dp=2,zero3=2")});
  for (ModelCase of : cases()) {
    of.batch *= 4;
    for (const Layout& layout : layouts) {
      const std::string where = of.describe() + ", " + layout.label();
      const theory::MeshSetting mesh{.setting = of.setting(), .layout = layout};
      const ModelRun run = run_model(of, layout);
      expect_counted(run, where);
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        const theory::MeshPlace place = theory::place_of(layout, rank);
        const CategoryBytes& peak = run.peaks[static_cast<std::size_t>(rank)];
        EXPECT_EQ(peak[Category::parameters], theory::held(mesh, place).total() * of.setting().bytes.element) << where;
        EXPECT_EQ(peak[Category::activations], theory::activation_bytes(mesh, place, token_bytes(layout))) << where;
      }
      const theory::Traffic step = theory::step_traffic(mesh.setting, layout);
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
