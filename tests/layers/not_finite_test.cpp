// NaN and infinity in a model: who gets to see them, and what is said of them.
#include "layers/parameters/not_finite.h"
#include "core/rank/finite_watch.h"
#include "layers/checkpoints/checkpoint.h"
#include "tests/layers/checkpoint_support.h"
#include "tests/layers/model_run.h"
#include "tests/layers/temporary_folder.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace tsprun::detail::test::not_finite_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {Layout::tsp(1),
                                          Layout::tsp(4),
                                          Layout::parse("sp=3"),
                                          Layout::parse("sp=3").with(SequenceExchange::ring),
                                          Layout::parse("sp=2").with(SequenceExchange::ulysses),
                                          Layout::parse("zero3=2"),
                                          Layout::parse("tp=2"),
                                          Layout::parse("tp=2").with(TensorExchange::sequence),
                                          Layout::parse("tp=2,sp=2").with(SequenceExchange::ring)};
  return all;
}

ModelCase small_case() {
  return {.config = small_config(24, 2, 4, 2, 6, 21, 41), .batch = 2, .sequence = 23, .dtype = DType::f32};
}

/// Sets an element of a parameter, by its place in the whole, where this rank holds it.
void set(const ParameterStore& store, const std::string& name, std::size_t row, std::size_t column, float value) {
  for (const ParameterPart& part : store.parts()) {
    if (part.plan.parameter.name != name) continue;
    const safetensors::Rectangle& block = part.plan.block;
    if (row < block.first_row || row >= block.first_row + block.rows) continue;
    if (column < block.first_column || column >= block.first_column + block.columns) continue;
    std::size_t i = row - block.first_row;
    std::size_t j = column - block.first_column;
    if (part.plan.transposed) std::swap(i, j);
    part.value.as<float>()[i * part.plan.width() + j] = value;
  }
}

std::vector<RankOutcome> try_model(const Layout& layout, const ModelCase& of, bool training,
                                   const std::function<void(Rank&, Model&)>& body) {
  return try_ranks(layout.ranks(), [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), layout);
    Model model(rank, mesh, {.config = of.config, .dtype = of.dtype, .recompute = of.recompute, .training = training});
    model.parameters().fill_fresh(of.config.layers, of.seed);
    disturb(model.parameters());
    body(rank, model);
  });
}

/// Logits [B·S, V] of a batch; `spoil` may change the weights first.
std::vector<float> logits_of(const Layout& layout, const ModelCase& of, const TokenBatch& batch,
                             const std::function<void(const ParameterStore&)>& spoil) {
  const std::size_t vocabulary = of.config.vocabulary;
  std::vector<float> logits(of.batch * of.sequence * vocabulary);
  std::mutex mutex;
  const LogitsSink sink = [&](std::span<const std::size_t> rows, std::size_t first_id, const ConstTensor& tile) {
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t j = 0; j < tile.size(1); ++j) {
        logits[rows[i] * vocabulary + first_id + j] = static_cast<float>(element(buffer_of(tile.select(0, i)), j));
      }
    }
  };
  const std::vector<RankOutcome> ends = try_model(layout, of, false, [&](Rank&, Model& model) {
    spoil(model.parameters());
    model.evaluate(batch, &sink);
  });
  for (const RankOutcome& end : ends) EXPECT_FALSE(end.failed) << test::describe(ends);
  return logits;
}

TEST(Model, RefusesLabelsThatAreNoIds) {
  const ModelCase of = small_case();
  const auto vocabulary = static_cast<std::int64_t>(of.config.vocabulary);
  for (const std::int64_t label : {vocabulary, std::int64_t{-2}, std::int64_t{-100}}) {
    BatchData data(of);
    data.labels.back() = label;
    const std::vector<RankOutcome> ends =
        try_model(Layout::tsp(2), of, true, [&](Rank&, Model& model) { model.forward_backward(data.view(of)); });
    for (const RankOutcome& end : ends) {
      EXPECT_NE(end.message.find(fmt::format("label {}: the vocabulary has {} ids", label, vocabulary)), std::string::npos)
          << end.message;
    }
  }
}

TEST(NotFinite, ATokensNanReachesOnlyTokensThatSeeIt) {
  const ModelCase of = small_case();
  const auto vocabulary = of.config.vocabulary;
  const Token spoiled = static_cast<Token>(vocabulary) - 1;
  for (const std::size_t position : {5U, 22U}) {
    BatchData data(of);
    std::replace(data.ids.begin(), data.ids.end(), spoiled, Token{0});
    data.ids[position] = spoiled;
    for (const Layout& layout : layouts()) {
      const auto whole = logits_of(layout, of, data.view(of), [](const ParameterStore&) {});
      const auto logits = logits_of(layout, of, data.view(of), [&](const ParameterStore& store) {
        set(store, "model.embed_tokens.weight", vocabulary - 1, 7, kNan);
      });
      for (std::size_t i = 0; i < logits.size(); ++i) {
        const std::size_t token = i / vocabulary;
        const bool sees = token >= position && token < of.sequence;
        if (sees ? std::isnan(logits[i]) : logits[i] == whole[i]) continue;
        ADD_FAILURE() << layout.label() << ": logit " << i % vocabulary << " of token " << token << " is " << logits[i]
                      << ", without the NaN at token " << position << " " << whole[i];
        break;
      }
    }
  }
}

void expect_words(const std::vector<RankOutcome>& ends, const std::vector<std::string>& words, const std::string& where) {
  for (const RankOutcome& end : ends) {
    EXPECT_EQ(end.cause, Cause::refused) << where << "\n" << test::describe(ends);
    for (const std::string& word : words) {
      EXPECT_NE(end.message.find(word), std::string::npos) << where << ": \"" << word << "\" isn't in\n" << end.message;
    }
  }
}

TEST(NotFinite, TheFirstTensorIsNamedUnderEveryLayout) {
  std::vector<Layout> all = layouts();
  all.push_back(Layout::parse("pp=2,tsp=2"));
  for (const Layout& layout : all) {
    ModelCase of = small_case();
    of.micro_batches = static_cast<std::size_t>(layout.stages());
    const BatchData data(of);
    for (const bool training : {false, true}) {
      if (!training && layout.stages() > 1) continue;
      const auto blame = [&](const std::string& parameter, std::size_t row, float value) {
        return try_model(layout, of, training, [&](Rank& rank, Model& model) {
          set(model.parameters(), parameter, row, 2, value);
          const auto pass = [&] {
            return training ? model.forward_backward(data.view(of)).mean : model.evaluate(data.view(of)).mean;
          };
          EXPECT_FALSE(std::isfinite(pass()));
          blame_not_finite(rank, rank.world(), model.parameters(),
                           {.what = "a test", .advice = "some advice", .gradients = training, .run = pass});
        });
      };
      // Numbers, but their products with a normed token are not.
      expect_words(blame("model.layers.1.self_attn.k_proj.weight", 1, 3e38F),
                   {"a test", "rank ", "layer 1, attention, forward: keys", "inf at [", "some advice"}, layout.label());
      expect_words(blame("model.layers.0.mlp.up_proj.weight", 1, 3e38F), {"layer 0, MLP, forward: up", "inf at ["},
                   layout.label());
      expect_words(blame("model.norm.weight", 0, kNan), {"a test", "tensor \"model.norm.weight\" [24] holds nan at [2]"},
                   layout.label());
    }
  }
}

TEST(NotFinite, AStageThatComesEarlierWinsWhateverWasFoundFirst) {
  std::vector<float> whole{1, 2, 3, 4, 5, 6};
  std::vector<float> broken = whole;
  broken[4] = -std::numeric_limits<float>::infinity();
  const Tensor good{std::span<float>(whole), {2, 3}};
  const Tensor bad{std::span<float>(broken), {2, 3}};
  FiniteWatch watch;
  watch.enter("first");
  watch.look(Watched::result, good);
  EXPECT_FALSE(watch.found());
  watch.enter("second");
  watch.look(Watched::attention_output, bad);
  watch.look(Watched::queries, bad);
  watch.enter("third");
  watch.look(Watched::input, bad);
  ASSERT_TRUE(watch.found());
  EXPECT_EQ(watch.found()->text, "second: queries, f32 [2, 3], -inf at [1, 1]");
}

TEST(NotFinite, ACheckpointWithANanIsNotSaved) {
  const ModelConfig config = checkpoint_config();
  for (Tensor ParameterPart::*member : {&ParameterPart::value, &ParameterPart::v}) {
    const TemporaryFolder folder;
    const std::vector<RankOutcome> ends = try_ranks(3, [&](Context& context) {
      Rank rank(context);
      ParameterStore store(rank, DType::f32, checkpoint_plan(config, 3, rank.rank()), true);
      fill_elements(store, 1);
      for (const ParameterPart& part : store.parts()) {
        // Cut by columns and held transposed; column 7 is the last rank's second.
        const safetensors::Rectangle& block = part.plan.block;
        if (part.plan.parameter.name != "model.layers.1.mlp.down_proj.weight" || block.first_column > 7 ||
            block.first_column + block.columns <= 7) {
          continue;
        }
        (part.*member).as<float>()[(7 - block.first_column) * part.plan.width() + 4] = kNan;
      }
      save_checkpoint(rank, rank.world(), store, config, checkpoint_state(8), folder.path(), {});
    });
    expect_words(ends, {"step 8 isn't saved", "\"model.layers.1.mlp.down_proj.weight\" [12, 10] holds nan at [4, 7]"}, "saving");
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

}  // namespace
}  // namespace tsprun::detail::test::not_finite_test
