// Documents that are packed into sequences: a training step under every kind of layout against the reference, which is given each
// document as a sequence of its own; what ranks hold, to the byte, and that they receive what they would without documents.
#include "layers/layout/packed_documents.h"
#include "tests/layers/model_run.h"
#include "tests/reference/model.h"
#include "tests/support/each_axis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <random>

namespace tsprun::detail::test::documents_test {
namespace {

constexpr Token kEnd = 1;

/// Loss and gradients of the documents of a batch, each computed alone, in f64.
struct Alone {
  double loss = 0;
  Tensors gradients;
};

Alone each_alone(const ModelCase& of, const Tensors& weights) {
  const BatchData data(of);
  Alone all;
  double predicted = 0;
  for (std::size_t begin = 0, i = 0; i < data.ids.size(); ++i) {
    const bool ends = data.ids[i] == kEnd || (i + 1) % of.sequence == 0;
    if (!ends) continue;
    const std::size_t count = i + 1 - begin;
    const auto labels = std::span(data.labels).subspan(begin, count);
    const auto of_these = static_cast<double>(std::ranges::count_if(labels, [](std::int64_t label) { return label >= 0; }));
    const auto result = reference::model<double>(of.config, 1, count, weights, std::span(data.ids).subspan(begin, count), labels);
    all.loss += of_these * result.loss;
    for (const auto& [name, values] : result.gradients) {
      std::vector<double>& sum = all.gradients[name];
      sum.resize(values.size());
      for (std::size_t k = 0; k < values.size(); ++k) sum[k] += of_these * values[k];
    }
    predicted += of_these;
    begin = i + 1;
  }
  all.loss /= std::max(predicted, 1.0);
  for (auto& [name, values] : all.gradients) {
    for (double& value : values) value /= std::max(predicted, 1.0);
  }
  return all;
}

void expect_same_bytes(const theory::PurposeBytes& one, const theory::PurposeBytes& other, const std::string& where) {
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    if (purpose == Purpose::embedding) continue;
    EXPECT_EQ(one[purpose], other[purpose]) << name(purpose) << ", " << where;
  }
}

void expect_each_alone(const ModelCase& of, const Layout& on, double tolerance) {
  const std::string where = of.describe() + ", " + on.label();
  Tensors weights;
  const ModelRun run = run_model(of, on, &weights);
  const Alone expected = each_alone(of, weights);
  EXPECT_NEAR(run.loss, expected.loss, tolerance * std::abs(expected.loss)) << where;
  expect_close(run.gradients, expected.gradients, tolerance, where);
  expect_counted(run, where);
  ModelCase whole = of;
  whole.document_end = {};
  const BatchData data(of);
  for (std::size_t rank = 0; rank < run.peaks.size(); ++rank) {
    EXPECT_EQ(run.peaks[rank], run.forecast[rank]) << where << ", rank " << rank;
    theory::RunPeaks without({.setting = of.setting(), .layout = on}, static_cast<int>(rank),
                             {.kv_bucket_heads = of.kv_bucket_heads});
    without.pass(data.view(whole));
    // Ranks have other tokens where documents are dealt, and so other rows of the embedding.
    expect_same_bytes(run.counted[rank].forward, without.traffic().forward, where + ", rank " + std::to_string(rank));
    expect_same_bytes(run.counted[rank].backward, without.traffic().backward, where + ", rank " + std::to_string(rank));
  }
}

Layout dense(int tensor, int sequence, SequenceExchange exchange, TensorExchange tokens = TensorExchange::plain) {
  return Layout{{{AxisKind::tp, tensor}, {AxisKind::sp, sequence}}}.with(exchange).with(tokens);
}

/// One rank, and layouts of each kind and of their products.
std::vector<Layout> layouts() {
  using enum SequenceExchange;
  constexpr TensorExchange kMegatron = TensorExchange::sequence;
  return each_axis(
      4, {Layout::tsp(1), Layout::parse("sp=3").with(ring), Layout::parse("sp=3").with(gather), Layout::tsp(3),
          dense(2, 2, gather), dense(2, 2, ring, kMegatron), dense(2, 2, ulysses, kMegatron), Layout::parse("tp=2,tsp=2"),
          Layout::parse("dp=2,tsp=2"), Layout::parse("dp=4"), Layout::parse("dp=2,sp=2").with(ring).with(DataSharing::zero1),
          Layout::parse("dp=2,tp=2").with(DataSharing::zero3), Layout::parse("dp=2,shard=2").with(DataSharing::zero3),
          Layout::parse("dp=2,zero3=2"), Layout::parse("pp=2"), Layout::parse("pp=2,tsp=2"),
          Layout::parse("pp=2,sp=2").with(ring), Layout::parse("dp=2,pp=2,tp=2").with(kMegatron)});
}

/// Returns case number `number`: documents of about 3, 17 and 100 tokens, among the first many of one token; layers with and
/// without windows and norms of heads, learned positions, rotated neighbours, scores with a cap, tied embeddings; every
/// recomputation mode, one micro-batch and two; one token to 41 in a sequence.
ModelCase numbered_case(std::size_t number) {
  constexpr std::array<std::size_t, 3> kVocabularies = {3, 17, 100};
  constexpr std::array<std::size_t, 5> kSequences = {41, 13, 29, 1, 8};
  ModelCase of{.config = {},
               .batch = 8,
               .sequence = kSequences[number % kSequences.size()],
               .recompute = static_cast<Recompute>(number % 3),
               .kv_bucket_heads = number / 3 % 3,
               .seed = number,
               .micro_batches = 1 + number / 2 % 2,
               .document_end = kEnd};
  const std::size_t vocabulary = kVocabularies[number / 5 % kVocabularies.size()];
  if (number % 4 == 3) {
    of.config = small_gpt2_config(4, 12, 2, 13, vocabulary);
    of.config.residual_dropout = of.config.embedding_dropout = of.config.attention_dropout = 0;
    return of;
  }
  of.config = small_config(24, 4, 12, number % 2 == 0 ? 4 : 12, 4, 13, vocabulary, number % 5 == 0);
  of.config.interleaved_rotary = number % 4 == 1;
  if (number % 4 == 2) {
    of.config.layers = 3;
    of.config.specs = unlike_layers();
    of.config.local_rope_theta = 20;
  }
  return of;
}

TEST(Documents, AreAsIfEachWereComputedAlone) {
  std::size_t number = 0;
  for (const Layout& on : layouts()) {
    for (int i = 0; i < 4; ++i) expect_each_alone(numbered_case(number++), on, 1e-12);
  }
}

/// Long enough for several tiles of keys and queries, with ends on either side of what zigzag cuts.
TEST(Documents, OfManyTilesAreToo) {
  for (const Layout& on : {Layout::tsp(2), Layout::parse("sp=2").with(SequenceExchange::ring),
                           Layout::parse("sp=2").with(SequenceExchange::ulysses)}) {
    for (const std::size_t window : {0U, 150U}) {
      ModelCase of{.config = small_config(8, 2, 2, 1, 4, 8, 150), .batch = 1, .sequence = 1301, .document_end = kEnd};
      of.config.specs = LayerSpec{.window = window};
      expect_each_alone(of, on, 1e-12);
    }
  }
}

TEST(Documents, InSinglePrecisionAndBf16) {
  for (const Layout& on : {Layout::tsp(2), Layout::parse("sp=2").with(SequenceExchange::ring),
                           Layout::parse("sp=2").with(SequenceExchange::ulysses), Layout::parse("sp=2"), Layout::parse("tp=2")}) {
    for (const std::size_t vocabulary : {3U, 30U}) {
      ModelCase of{.config = small_config(64, 1, 4, 2, 8, 40, vocabulary), .batch = 2, .sequence = 57, .document_end = kEnd};
      of.dtype = DType::f32;
      expect_each_alone(of, on, 2e-5);
      of.dtype = DType::bf16;
      expect_each_alone(of, on, 3e-2);
    }
  }
}

/// Two steps of one model, of which only the second has documents, and an evaluation: nothing is left of what was before.
TEST(Documents, ComeAndGoFromPassToPass) {
  for (const Layout& on : {Layout::tsp(2), Layout::parse("dp=2")}) {
    const ModelCase of = numbered_case(6);
    run_ranks(on.ranks(), [&](Context& context) {
      Rank rank(context);
      Mesh mesh(context.world(), on);
      const auto loss_of = [&](bool first_without) {
        Model model(rank, mesh, {.config = of.config, .dtype = of.dtype, .training = true});
        model.parameters().fill_fresh(of.config.layers, of.seed);
        disturb(model.parameters());
        const BatchData data(of);
        ModelCase whole = of;
        whole.document_end = {};
        double without = 0;
        if (first_without) without = model.forward_backward(data.view(whole)).mean;
        const double with = model.forward_backward(data.view(of)).mean;
        EXPECT_NE(with, without);
        EXPECT_NEAR(model.evaluate(data.view(of)).mean, with, 1e-14 * with);
        if (first_without) {
          EXPECT_EQ(model.forward_backward(data.view(whole)).mean, without);
        }
        return with;
      };
      EXPECT_EQ(loss_of(true), loss_of(false)) << on.label();
    });
  }
}

/// Layouts under which documents are dealt.
std::vector<Layout> dealing_layouts() {
  return {Layout::tsp(2), Layout::parse("zero3=3"), Layout::parse("sp=2").with(SequenceExchange::ring),
          dense(2, 2, SequenceExchange::gather, TensorExchange::sequence), Layout::parse("pp=2,tsp=2")};
}

TEST(Documents, DropTheSameElementsWhereverTheirTokensAre) {
  ModelCase of{.config = small_gpt2_config(2, 12, 2, 13, 17), .batch = 2, .sequence = 29, .document_end = kEnd};
  of.config.attention_dropout = 0;
  ASSERT_GT(of.config.residual_dropout, 0);
  const ModelRun one = run_model(of, Layout::tsp(1));
  for (const Layout& on : dealing_layouts()) {
    const ModelRun run = run_model(of, on);
    EXPECT_NEAR(run.loss, one.loss, 1e-12 * one.loss) << on.label();
    expect_close(run.gradients, one.gradients, 1e-11, on.label());
  }
}

/// Returns the logits [B, S, V] of an evaluation.
std::vector<double> logits_of(const ModelCase& of, const Layout& on) {
  const std::size_t vocabulary = of.config.vocabulary;
  std::vector<double> logits(of.batch * of.sequence * vocabulary, std::nan(""));
  std::mutex mutex;
  run_ranks(on.ranks(), [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), on);
    Model model(rank, mesh, {.config = of.config, .dtype = of.dtype});
    model.parameters().fill_fresh(of.config.layers, of.seed);
    disturb(model.parameters());
    const BatchData data(of);
    const LogitsSink sink = [&](std::span<const std::size_t> rows, std::size_t first_id, const ConstTensor& tile) {
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        for (std::size_t j = 0; j < tile.size(1); ++j)
          logits[rows[i] * vocabulary + first_id + j] = tile.as<double>()[i * tile.stride(0) + j];
      }
    };
    model.evaluate(data.view(of), &sink);
  });
  return logits;
}

TEST(Documents, HaveLogitsByTheirTokensInTheSequence) {
  const ModelCase of{.config = small_config(24, 2, 12, 4, 4, 13, 9), .batch = 2, .sequence = 37, .document_end = kEnd};
  const std::vector<double> one = logits_of(of, Layout::tsp(1));
  for (const Layout& on : dealing_layouts()) {
    if (on.stages() > 1) continue;
    const std::vector<double> logits = logits_of(of, on);
    for (std::size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(logits[i], one[i], 1e-10) << on.label() << ", " << i;
  }
}

TEST(PackedDocuments, AreDealtDocumentByDocument) {
  run_ranks(2, [](Context& context) {
    Rank rank(context);
    const ModelConfig config = small_config(8, 1, 2, 1, 4, 8, 9);
    const std::vector<Token> ids = {5, 6, 7, 8, 9, 1, 2, 3, 1, 4,   // documents of 6, 3 and 1 tokens
                                    2, 3, 4, 1, 5, 6, 7, 8, 9, 1};  // of 4 and 6
    // Chunks of 3, 3, 2 and 2 tokens. Of the first sequence the second document goes to rank 0 and the third to rank 1, and the
    // first, for which neither has room, gives 1, 2, 2 and 1 tokens to what is left. Of the other the first document goes to rank
    // 0, and the second gives 1, 3, 2 and 0.
    const std::vector<std::uint32_t> starts = {0, 6, 6, 0, 0, 9, 0, 0, 0, 6, /**/ 0, 0, 4, 4, 4, 4, 4, 4, 0, 0};
    const std::vector<std::uint32_t> positions = {0, 0, 1, 1, 2, 0, 3, 4, 5, 2, /**/ 0, 1, 0, 1, 2, 3, 4, 5, 2, 3};
    const TokenLayout tokens(rank, config, DType::f32, 2, 10, context.rank(), 2, 0, 1, 0, true);
    const std::uint64_t before = context.memory_use()[Category::workspace];
    const PackedDocuments documents(rank, tokens, ids, kEnd, true);
    EXPECT_EQ(context.memory_use()[Category::workspace] - before, 2 * 4 * 2 * 10 + 4 * tokens.rows());
    ASSERT_TRUE(documents.deals());
    const kernels::Documents views = documents.views().starts;
    ASSERT_TRUE(views.dealt());
    for (std::size_t b = 0; b < 2; ++b) {
      EXPECT_TRUE(std::ranges::equal(views.of(b), std::span(starts).subspan(10 * b, 10))) << b;
      EXPECT_TRUE(std::ranges::equal(views.positions_of(b), std::span(positions).subspan(10 * b, 10))) << b;
    }
    const std::vector<Token> dealt = documents.dealt(std::span<const Token>(ids));
    EXPECT_EQ(dealt, (std::vector<Token>{5, 2, 3, 6, 7, 4, 8, 9, 1, 1, /**/ 2, 3, 5, 6, 7, 8, 9, 1, 4, 1}));
    const std::vector<std::uint32_t> mine = context.rank() == 0 ? std::vector<std::uint32_t>{0, 0, 1, 5, 2, 0, 1, 0, 2, 3}
                                                                : std::vector<std::uint32_t>{1, 2, 0, 3, 4, 1, 2, 3, 4, 5};
    EXPECT_TRUE(std::ranges::equal(documents.views().positions, mine));
  });
}

TEST(PackedDocuments, SayWhereEachBeginsAndWhereTokensStand) {
  run_ranks(2, [](Context& context) {
    Rank rank(context);
    const ModelConfig config = small_config(8, 1, 2, 1, 4, 8, 9);
    const std::vector<Token> ids = {5, 1, 1, 4, 3, 1, 2,   // documents of 2, 1, 3 and 1 tokens
                                    1, 2, 3, 4, 5, 6, 7};  // of 1 and 6
    const std::vector<std::uint32_t> starts = {0, 0, 2, 3, 3, 3, 6, 0, 1, 1, 1, 1, 1, 1};
    // Chunks of 2, 2, 2 and 1 tokens: the first rank has the first and the last.
    const std::vector<std::uint32_t> mine =
        context.rank() == 0 ? std::vector<std::uint32_t>{0, 1, 0, 0, 0, 5} : std::vector<std::uint32_t>{0, 0, 1, 2, 1, 2, 3, 4};
    const TokenLayout tokens(rank, config, DType::f32, 2, 7, context.rank(), 2, 0, 1, 0, true);
    const std::uint64_t before = context.memory_use()[Category::workspace];
    const PackedDocuments documents(rank, tokens, ids, kEnd);
    EXPECT_EQ(context.memory_use()[Category::workspace] - before, 4 * 2 * 7 + 4 * mine.size());
    for (std::size_t b = 0; b < 2; ++b) {
      EXPECT_TRUE(std::ranges::equal(documents.views().starts.of(b), std::span(starts).subspan(7 * b, 7))) << b;
    }
    EXPECT_TRUE(std::ranges::equal(documents.views().positions, mine));
    EXPECT_TRUE(std::ranges::equal(documents.held_positions(tokens), mine));
    EXPECT_FALSE(PackedDocuments().any());
    std::vector<std::int64_t> labels(ids.size(), 3);
    unlabel_ends(labels, ids, kEnd);
    EXPECT_EQ(labels, (std::vector<std::int64_t>{3, -1, -1, 3, 3, -1, 3, -1, 3, 3, 3, 3, 3, 3}));
  });
}

}  // namespace
}  // namespace tsprun::detail::test::documents_test
