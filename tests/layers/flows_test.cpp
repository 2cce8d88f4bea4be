// Traffic, parameters and FLOPs of every scheme: against the per-layer table, and against counting element by element.
#include "layers/theory/flows.h"
#include "layers/layout/check_layout.h"
#include "layers/layout/zigzag.h"
#include "layers/theory/flops.h"
#include "layers/theory/layouts.h"
#include "layers/theory/peaks.h"
#include "layers/theory/search.h"
#include "layers/theory/traffic.h"
#include "tests/layers/step_formulas.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace tsprun::detail::theory::flows_test {
namespace {

using formulas::PurposeBytes;
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

/// Returns the sum of a step's flows: all but the smallest of `other`.
Traffic step_traffic(const Setting& setting, const Layout& layout) { return sum(step_flows(setting, layout)); }

Layout layout(std::vector<Axis> axes, TensorExchange tensor = TensorExchange::plain,
              SequenceExchange sequence = SequenceExchange::gather) {
  return Layout{.axes = std::move(axes)}.with(tensor).with(sequence);
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    for (const auto& [n_h, n_kv] : {std::pair{24U, 24U}, {24U, 8U}, {24U, 3U}, {24U, 1U}, {24U, 6U}}) {
      Setting s;
      s.model = find_config("nano").config;
      s.model.query_heads = n_h;
      s.model.kv_heads = n_kv;
      s.model.intermediate = 37;
      s.model.vocabulary = 101;
      s.model.layers = 3;
      s.batch = 4;
      s.sequence = 29;
      s.bytes = ElementBytes::of(DType::bf16);
      s.recompute = recompute;
      all.push_back(s);
    }
  }
  return all;
}

/// Blocks only: without embedding, head and norm gains.
Traffic blocks(Traffic traffic) {
  for (PurposeBytes* pass : {&traffic.forward, &traffic.backward}) {
    for (const Purpose purpose : {Purpose::embedding, Purpose::head, Purpose::other}) (*pass)[purpose] = 0;
  }
  return traffic;
}

void expect_equal(const Traffic& actual, const Traffic& expected, const std::string& where) {
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    EXPECT_EQ(actual.forward[purpose], expected.forward[purpose]) << name(purpose) << " forward, " << where;
    EXPECT_EQ(actual.backward[purpose], expected.backward[purpose]) << name(purpose) << " backward, " << where;
  }
}

TEST(Flows, OfBlocksAreThoseOfTheTableForEveryScheme) {
  for (const Setting& s : settings()) {
    const std::uint64_t L = s.model.layers;
    for (const int D : {2, 3, 4, 6, 8}) {
      const std::string where = "n_kv " + std::to_string(s.model.kv_heads) + ", D " + std::to_string(D);
      const auto of = [&](const Layout& each) { return blocks(step_traffic(s, each)); };
      expect_equal(of(layout({{AxisKind::tsp, D}})), tsp_block(s, D) * L, "tsp, " + where);
      expect_equal(of(layout({{AxisKind::zero3, D}})), zero3_block(s, D) * L, "zero3, " + where);
      expect_equal(of(layout({{AxisKind::tp, D}})), tp_block(s, D) * L, "tp, " + where);
      expect_equal(of(layout({{AxisKind::tp, D}}, TensorExchange::sequence)), tp_sequence_block(s, D, false) * L,
                   "tp sequence, " + where);
      expect_equal(of(layout({{AxisKind::sp, D}})), sp_gather_block(s, D) * L, "sp gather, " + where);
      expect_equal(of(layout({{AxisKind::sp, D}}, TensorExchange::plain, SequenceExchange::ring)), sp_ring_block(s, D) * L,
                   "sp ring, " + where);
      expect_equal(of(layout({{AxisKind::sp, D}}, TensorExchange::plain, SequenceExchange::ulysses)), sp_ulysses_block(s, D) * L,
                   "sp ulysses, " + where);
      for (const int T : {2, 3, 4}) {
        expect_equal(of(layout({{AxisKind::tp, T}, {AxisKind::sp, D}})), tp_sp_block(s, T, D) * L,
                     "tp " + std::to_string(T) + ", sp, " + where);
      }
    }
  }
}

TEST(Flows, OfAWholeTspStepAreThoseOfTheStep) {
  for (const Setting& s : settings()) {
    for (const int D : {1, 2, 4, 8}) {
      const Traffic expected = tsp_step(s, D, s.tokens() - s.tokens() / static_cast<std::uint64_t>(D));
      const Traffic actual = step_traffic(s, layout({{AxisKind::tsp, D}}));
      expect_equal(actual, expected, "D " + std::to_string(D));
    }
  }
}

TEST(Flows, OfAWholeStepAreThoseOfTheFormulasUnderEveryLayout) {
  std::size_t checked = 0;
  for (const int ranks : {1, 2, 4, 6, 8, 12}) {
    for (const Layout& each : all_layouts(ranks)) {
      for (Setting s : settings()) {
        s.batch = 12;
        if (!why_impossible(s, each).empty()) continue;
        Traffic actual = step_traffic(s, each);
        actual.forward[Purpose::other] = actual.backward[Purpose::other] = 0;
        expect_equal(actual, formulas::step(s, each, formulas::even_remote_rows(s, each)),
                     each.label() + ", n_kv " + std::to_string(s.model.kv_heads));
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 500U);
}

TEST(Holdings, AndSavedActivationsAreThoseOfTheFormulasUnderEveryLayout) {
  for (const int ranks : {1, 2, 4, 6, 8, 12}) {
    for (const Layout& each : all_layouts(ranks)) {
      for (Setting s : settings()) {
        s.batch = 12;
        if (!why_impossible(s, each).empty()) continue;
        for (int rank = 0; rank < each.replica(); ++rank) {
          const MeshSetting mesh{s, each};
          const MeshPlace place = place_of(each, rank);
          EXPECT_EQ(held(mesh, place).total(), formulas::held_elements(s, each, place.tensor, place.sequence)) << each.label();
          EXPECT_EQ(activation_bytes(mesh, place, 12), formulas::activation_bytes(s, each, place.tensor, place.sequence, 12))
              << each.label();
        }
      }
    }
  }
}

/// Every parameter's holders under tp=T, tsp=D, by walking over heads and rows; a copy of a K/V head lies with the first of a
/// tensor rank's parts that reads it.
struct Walked {
  std::vector<std::vector<std::uint64_t>> elements;  ///< of attention and MLP of one layer, by t and p
  std::uint64_t copies = 0;                          ///< elements beyond the first copy
};
Walked walk(const ModelConfig& model, int T, int D) {
  Walked walked;
  walked.elements.assign(static_cast<std::size_t>(T), std::vector<std::uint64_t>(static_cast<std::size_t>(D)));
  const std::size_t per_rank = model.query_heads / static_cast<std::size_t>(T * D);
  const std::uint64_t head = 2 * model.hidden * model.head_dim;
  std::map<std::size_t, std::set<std::size_t>> holders;  // K/V head → tensor ranks
  for (std::size_t q = 0; q < model.query_heads; ++q) {
    const std::size_t rank = q / per_rank;
    const std::size_t t = rank / static_cast<std::size_t>(D);
    const std::size_t p = rank % static_cast<std::size_t>(D);
    walked.elements[t][p] += head;  // W_Q and W_O
    const std::size_t kv = q / model.heads_per_kv_head({});
    if (holders[kv].insert(t).second) walked.elements[t][p] += head;  // W_K and W_V
  }
  for (const auto& [kv, tensor_ranks] : holders) walked.copies += (tensor_ranks.size() - 1) * head;
  const auto cut = [](std::size_t whole, int parts, int part) {
    const auto n = static_cast<std::size_t>(parts);
    return whole / n + (static_cast<std::size_t>(part) < whole % n ? 1 : 0);
  };
  for (int t = 0; t < T; ++t) {
    for (int p = 0; p < D; ++p)
      walked.elements[static_cast<std::size_t>(t)][static_cast<std::size_t>(p)] +=
          3 * model.hidden * cut(cut(model.intermediate, T, t), D, p);
  }
  return walked;
}

TEST(Holdings, UnderTpAndTspAreWhatWalkingOverHeadsAndRowsGives) {
  for (const Setting& s : settings()) {
    for (const auto& [T, D] : {std::pair{1, 1}, {1, 4}, {2, 1}, {8, 1}, {2, 2}, {2, 4}, {4, 2}, {3, 4}, {2, 6}, {6, 4}}) {
      const Layout both = layout({{AxisKind::tp, T}, {AxisKind::tsp, D}});
      if (!why_impossible(s, both).empty()) continue;  // tp cuts between the query heads of a K/V head
      const Walked walked = walk(s.model, T, D);
      for (int t = 0; t < T; ++t) {
        for (int p = 0; p < D; ++p) {
          const RankParameters here = held(MeshSetting{s, both}, {t, p});
          EXPECT_EQ(here.attention + here.mlp,
                    s.model.layers * walked.elements[static_cast<std::size_t>(t)][static_cast<std::size_t>(p)])
              << "T " << T << ", D " << D << ", n_kv " << s.model.kv_heads << ", rank " << t << ", " << p;
        }
      }
    }
  }
}

/// Under tp×tsp: each of a tensor rank's parts is read by the other D−1; copies' gradients are summed once more.
TEST(Flows, OfTpTimesTspMoveEveryPartToTheOtherRanksOfItsAxis) {
  for (const Setting& s : settings()) {
    for (const auto& [T, D] : {std::pair{2, 2}, {2, 4}, {4, 2}, {8, 3}}) {
      if (!why_impossible(s, layout({{AxisKind::tp, T}, {AxisKind::tsp, D}})).empty()) continue;
      const Walked walked = walk(s.model, T, D);
      std::uint64_t weights = 0;
      for (const auto& parts : walked.elements) {
        for (const std::uint64_t part : parts) weights += part * static_cast<std::uint64_t>(D - 1);
      }
      const std::uint64_t L = s.model.layers;
      const Traffic actual = step_traffic(s, layout({{AxisKind::tp, T}, {AxisKind::tsp, D}}));
      EXPECT_EQ(actual.forward[Purpose::weights], L * weights * 2);
      EXPECT_EQ(actual.backward[Purpose::weights], L * weights * 2);
      EXPECT_EQ(actual.backward[Purpose::gradients], L * (weights + 2 * walked.copies) * 4);
      // All-reduces of every group of T: 2(T−1) times [B, S_p, h], two a pass.
      EXPECT_EQ(actual.forward[Purpose::activations],
                L * 4U * static_cast<std::uint64_t>(T - 1) * s.batch * s.sequence * s.model.hidden * 2);
      EXPECT_EQ(actual.backward[Purpose::activations], actual.forward[Purpose::activations]);
    }
  }
}

TEST(Flows, OfDataParallelismAddAnAllReduceOfAllThatARankHolds) {
  for (const Setting& s : settings()) {
    for (const Layout& inner : {layout({}), layout({{AxisKind::tsp, 4}}), layout({{AxisKind::tp, 2}, {AxisKind::sp, 2}})}) {
      Layout outer = inner;
      outer.axes.insert(outer.axes.begin(), {AxisKind::dp, 2});
      Setting half = s;
      half.batch = 2;
      const Traffic one = step_traffic(half, inner);
      const Traffic two = step_traffic(s, outer);
      std::uint64_t held_by_all = 0;
      for (int t = 0; t < inner.tensor(); ++t) {
        for (int p = 0; p < inner.sequence(); ++p) held_by_all += held(MeshSetting{s, inner}, {t, p}).total();
      }
      EXPECT_EQ(two.forward.total(), 2 * one.forward.total());
      EXPECT_EQ(two.backward.total(), 2 * one.backward.total() + 2 * held_by_all * s.bytes.accumulated);
    }
  }
}

TEST(Holdings, OfTspAndZero3AddUpToTheModel) {
  for (const Setting& s : settings()) {
    for (const int D : {1, 2, 3, 4, 8}) {
      std::uint64_t folded = 0;
      std::uint64_t zero = 0;
      for (int p = 0; p < D; ++p) {
        const RankParameters here = held(MeshSetting{s, layout({{AxisKind::tsp, D}})}, {0, p});
        folded += here.attention + here.mlp;
        const RankParameters there = held(MeshSetting{s, layout({{AxisKind::zero3, D}})}, {0, p});
        zero += there.attention + there.mlp;
        EXPECT_EQ(there.vocabulary, here.vocabulary);
      }
      EXPECT_EQ(folded, s.model.layers * s.block_parameters({}));
      EXPECT_EQ(zero, s.model.layers * s.block_parameters({}));
    }
  }
}

TEST(Persistent, IsTableIIIWhereEverythingDivides) {
  Setting s;
  s.model = find_config("paper-7b").config;
  s.batch = 8;
  s.sequence = 8192;
  s.bytes = ElementBytes::of(DType::bf16);
  const std::uint64_t P = 8'589'934'592;
  const std::uint64_t vocabulary = 2ULL * 32000 * 4096;
  const std::uint64_t norms = 65 * 4096;
  struct Row {
    Layout layout;
    std::uint64_t weights_over, vocabulary_over, tokens_over, batch_over;
  };
  const Row rows[] = {{layout({{AxisKind::dp, 8}}), 1, 1, 1, 8},
                      {layout({{AxisKind::tp, 8}}), 8, 8, 1, 1},
                      {layout({{AxisKind::sp, 8}}), 1, 8, 8, 1},
                      {layout({{AxisKind::tp, 2}, {AxisKind::sp, 4}}), 2, 2, 4, 1},
                      {layout({{AxisKind::tsp, 8}}), 8, 8, 8, 1},
                      {layout({{AxisKind::zero3, 8}}), 8, 8, 8, 1},
                      {layout({{AxisKind::tp, 4}, {AxisKind::tsp, 2}}), 8, 4, 2, 1},
                      {layout({{AxisKind::dp, 2}, {AxisKind::tsp, 4}}), 4, 4, 4, 2}};
  for (const Row& row : rows) {
    const CategoryBytes bytes = certain(MeshSetting{s, row.layout}, {}, 12);
    const std::uint64_t elements = P / row.weights_over + vocabulary / row.vocabulary_over + norms;
    EXPECT_EQ(bytes[Category::parameters], elements * 2) << row.layout.label();
    EXPECT_EQ(bytes[Category::gradients], elements * 4) << row.layout.label();
    EXPECT_EQ(bytes[Category::optimizer], elements * 12) << row.layout.label();
    // Inputs of sublayers are whole on every rank of tp, the rest is of its heads and rows.
    const std::uint64_t T = static_cast<std::uint64_t>(row.layout.tensor());
    const std::uint64_t saved = 32 * (2 * 2 * 4096 + (114'816 - 2 * 2 * 4096) / T) + 2 * 4096 + 4 + 12;
    EXPECT_EQ(bytes[Category::activations], 8 / row.batch_over * 8192 / row.tokens_over * saved) << row.layout.label();
  }
}

TEST(Persistent, UnderTspIsWhatTheScheduleBooks) {
  for (const Setting& s : settings()) {
    for (const int D : {1, 2, 4, 8}) {
      for (int p = 0; p < D; ++p) {
        const CategoryBytes bytes = certain(MeshSetting{s, layout({{AxisKind::tsp, D}})}, {0, p}, 12);
        EXPECT_EQ(bytes[Category::activations], formulas::activation_bytes(s, Zigzag(s.sequence, D).tokens(p), 12));
      }
    }
  }
}

TEST(Persistent, UnderMegatronsSequenceParallelismTokensAddUp) {
  for (const Setting& s : settings()) {
    const Layout each = layout({{AxisKind::tp, 4}, {AxisKind::sp, 2}}, TensorExchange::sequence);
    std::uint64_t tokens = 0;
    for (int t = 0; t < 4; ++t) {
      for (int p = 0; p < 2; ++p) tokens += held_tokens(MeshSetting{s, each}, {t, p});
    }
    EXPECT_EQ(tokens, s.tokens());
  }
}

/// Ulysses keeps q, k, v and log-sum-exps of a rank's heads over whole sequences: K and V of heads that several ranks read with
/// each.
TEST(Persistent, UnderUlyssesIsByHeads) {
  for (const Setting& s : settings()) {
    const auto sum = [&](SequenceExchange exchange) {
      std::uint64_t bytes = 0;
      for (int p = 0; p < 4; ++p)
        bytes += certain(MeshSetting{s, layout({{AxisKind::sp, 4}}, TensorExchange::plain, exchange)}, {0, p},
                         12)[Category::activations];
      return bytes;
    };
    const std::uint64_t read = HeadCut(s.model.query_heads, s.model.kv_heads, 4).kv_heads_read_by_all();
    const std::uint64_t copies = s.recompute == Recompute::none ? read - s.model.kv_heads : 0;
    EXPECT_EQ(sum(SequenceExchange::ulysses),
              sum(SequenceExchange::gather) + s.model.layers * s.tokens() * copies * 2 * s.model.head_dim * 2)
        << s.model.kv_heads;
  }
}

TEST(Flops, OfAllRanksAddUpToTheModels) {
  for (const Setting& s : settings()) {
    if (s.recompute != Recompute::none) continue;
    const PassFlops one = forward_flops(s, {}, {});
    const double tokens = static_cast<double>(s.tokens());
    const double L = static_cast<double>(s.model.layers);
    // Two a parameter and token; four a head dim, query head and pair.
    EXPECT_DOUBLE_EQ(one.attention_linear + one.mlp, 2 * tokens * L * static_cast<double>(s.block_parameters({})));
    EXPECT_DOUBLE_EQ(one.attention_core, 4.0 * L * static_cast<double>(s.model.query_width({})) * 4 * 29 * 30 / 2);
    for (const Layout& each : {layout({{AxisKind::tsp, 8}}), layout({{AxisKind::sp, 6}}), layout({{AxisKind::zero3, 4}}),
                               layout({{AxisKind::sp, 4}}, TensorExchange::plain, SequenceExchange::ulysses)}) {
      double forward = 0;
      double step = 0;
      for (int p = 0; p < each.sequence(); ++p) {
        forward += forward_flops(s, each, {0, p}).total();
        step += step_flops(s, each, {0, p}).total();
      }
      EXPECT_NEAR(forward / one.total(), 1, 1e-12) << each.label();
      // One rank computes its logits once, others twice.
      EXPECT_NEAR(step / (step_flops(s, {}, {}).total() + one.head), 1, 1e-12) << each.label();
    }
  }
}

/// Round a ring of k ranks there are k − 1 hops, whichever axes the ring goes over.
TEST(Flows, TheHeadsShardsHopOverAllRanksThatHoldOne) {
  Setting s;
  s.model = find_config("nano").config;
  s.batch = 8;
  s.sequence = 256;  // more tokens than rows: the head's shards go round
  for (const auto& [axes, hops] : {std::pair{std::vector<Axis>{{AxisKind::tp, 4}}, 3U},
                                   {{{AxisKind::tp, 2}, {AxisKind::sp, 4}}, 7U},
                                   {{{AxisKind::tp, 2}, {AxisKind::tsp, 2}}, 3U}}) {
    int found = 0;
    for (const Flow& flow : step_flows(s, layout(axes, TensorExchange::sequence))) {
      if (flow.purpose != Purpose::head || flow.phase != Phase::head) continue;
      EXPECT_EQ(flow.pattern, Pattern::ring);
      EXPECT_EQ(flow.messages, hops) << layout(axes).print();
      ++found;
    }
    EXPECT_EQ(found, 2);
  }
}

TEST(Peaks, HoldMoreThanWhatIsPersistentAndNotMoreWithMoreRanks) {
  Setting s;
  s.model = find_config("paper-7b").config;
  s.batch = 1;
  s.sequence = 32768;
  s.bytes = ElementBytes::of(DType::bf16);
  const auto peak = [&](const Layout& each) {
    const MeshSetting mesh{s, each};
    const std::uint64_t total = peaks(mesh, fullest(mesh)).total;
    EXPECT_GT(total, certain(mesh, place_of(mesh.layout, fullest(mesh)), 12).total) << each.label();
    return total;
  };
  for (const AxisKind kind : {AxisKind::tp, AxisKind::sp, AxisKind::tsp, AxisKind::zero3})
    EXPECT_LT(peak(layout({{kind, 8}})), peak(layout({{kind, 4}}))) << name(kind);
  // The comparison that the paper is about: TSP holds least, and ZeRO-3, which holds the same for good, needs more on the way.
  const std::uint64_t tsp = peak(layout({{AxisKind::tsp, 8}}));
  for (const Layout& other :
       {layout({{AxisKind::tp, 8}}), layout({{AxisKind::sp, 8}}), layout({{AxisKind::zero3, 8}}),
        layout({{AxisKind::tp, 8}}, TensorExchange::sequence), layout({{AxisKind::tp, 2}, {AxisKind::sp, 4}})}) {
    EXPECT_LT(tsp, peak(other)) << other.label();
  }
}

TEST(Layouts, ThatCannotBeNameWhatWorks) {
  Setting s;
  s.model = find_config("paper-7b").config;
  s.batch = 6;
  s.sequence = 64;
  EXPECT_EQ(why_impossible(s, layout({{AxisKind::tsp, 6}})), "32 query heads don't divide by 6; try 4 or 8");
  EXPECT_EQ(why_impossible(s, layout({{AxisKind::tp, 4}, {AxisKind::tsp, 3}})), "8 query heads don't divide by 3; try 2 or 4");
  EXPECT_EQ(why_impossible(s, layout({{AxisKind::dp, 4}})), "dp=4 doesn't divide --batch 6; try --batch 8");
  Setting grouped = s;
  grouped.model.query_heads = 12;
  grouped.model.kv_heads = 3;
  const std::string why = why_impossible(grouped, layout({{AxisKind::tp, 2}, {AxisKind::tsp, 2}}));
  EXPECT_NE(why.find("tp=2 cuts between the query heads of a K/V head"), std::string::npos) << why;
  EXPECT_NE(why.find("; try tp=1 or tp=3"), std::string::npos) << why;
  for (const int works : {1, 3}) EXPECT_EQ(why_impossible(grouped, layout({{AxisKind::tp, works}, {AxisKind::tsp, 2}})), "");
  EXPECT_EQ(why_impossible(s, layout({{AxisKind::sp, 6}})), "");
  EXPECT_EQ(why_impossible(s, layout({{AxisKind::zero3, 6}})), "");
  EXPECT_NE(why_impossible(s, layout({{AxisKind::sp, 6}}, TensorExchange::plain, SequenceExchange::ulysses)), "");
}

}  // namespace
}  // namespace tsprun::detail::theory::flows_test
