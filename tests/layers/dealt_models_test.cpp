// Documents that are dealt to ranks in models whose layers take keys and values of others, and inputs of their own: a training
// step under layouts that deal, and whose data ranks share weights, beside one rank; what ranks receive and hold, to the byte;
// and that rank beside each document computed alone.
#include "layers/layout/dealt_documents.h"
#include "tests/layers/model_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

namespace tsprun::detail::test::dealt_models_test {
namespace {

constexpr Token kEnd = 1;

/// A model like Gemma 4 whose windows hide nothing, without and with inputs of its layers.
ModelCase lending_case(std::size_t inputs) {
  ModelCase of{.config = small_lending_family(inputs), .batch = 4, .sequence = 41, .document_end = kEnd};
  std::vector<LayerSpec> layers;
  for (std::size_t layer = 0; layer < of.config.layers; ++layer) {
    layers.push_back(of.config.layer(layer));
    if (layers.back().window > 0) layers.back().window = 64;
  }
  of.config.specs = LayerSpecs(layers);
  return of;
}

std::vector<Layout> layouts() {
  const auto shared = [](const char* text) { return Layout::parse(text).with(DataSharing::zero3); };
  return {Layout::tsp(2),
          Layout::tsp(4),
          Layout::parse("sp=4"),
          Layout::parse("sp=2").with(SequenceExchange::ring),
          Layout::parse("sp=4").with(SequenceExchange::ring),
          Layout::parse("sp=4").with(SequenceExchange::ulysses),
          Layout::parse("zero3=3"),
          Layout::parse("tp=2,tsp=2"),
          shared("dp=2"),
          shared("dp=2,tsp=2"),
          shared("dp=2,tp=2"),
          shared("dp=2,sp=2").with(SequenceExchange::ring),
          shared("dp=2,shard=2,sp=2")};
}

/// Loss and gradients of the batch's documents, each a batch of its own on one rank.
ModelRun each_alone(const ModelCase& of) {
  ModelRun all;
  run_ranks(1, [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), Layout::tsp(1));
    Model model(rank, mesh, {.config = of.config, .dtype = of.dtype, .training = true});
    model.parameters().fill_fresh(of.config.layers, of.seed);
    disturb(model.parameters());
    const BatchData data(of);
    double predicted = 0;
    for (std::size_t begin = 0, i = 0; i < data.ids.size(); ++i) {
      if (data.ids[i] != kEnd && (i + 1) % of.sequence != 0) continue;
      const std::size_t count = i + 1 - begin;
      const Loss loss = model.forward_backward({.sequence = count,
                                                .ids = std::span(data.ids).subspan(begin, count),
                                                .labels = std::span(data.labels).subspan(begin, count)});
      const auto tokens = static_cast<double>(loss.tokens);
      Tensors gradients;
      std::mutex mutex;
      for (const ParameterPart& part : model.parameters().states()) collect(rank, part.plan, part.gradient, gradients, mutex);
      for (const auto& [name, values] : gradients) {
        std::vector<double>& sum = all.gradients[name];
        sum.resize(values.size());
        for (std::size_t k = 0; k < values.size(); ++k) sum[k] += tokens * values[k];
      }
      all.loss += tokens * loss.mean;
      predicted += tokens;
      begin = i + 1;
    }
    all.loss /= predicted;
    for (auto& [name, values] : all.gradients) {
      for (double& value : values) value /= predicted;
    }
  });
  return all;
}

TEST(DealtModels, LendKeysAndTakeInputsUnderAllLayouts) {
  std::size_t number = 0;
  for (const std::size_t inputs : {0U, 4U}) {
    ModelCase of = lending_case(inputs);
    ASSERT_TRUE(of.config.lends());
    ASSERT_TRUE(deals_documents(of.config, Zigzag(of.sequence, 2)));
    const ModelRun alone = each_alone(of);
    for (const Layout& layout : layouts()) {
      of.recompute = static_cast<Recompute>(number % 3);
      of.micro_batches = layout.data() == 4 ? 1 : 1 + number % 2;
      ++number;
      const std::string where = of.describe() + ", " + layout.label();
      SCOPED_TRACE(where);
      const ModelRun run = run_model(of, layout);
      EXPECT_NEAR(run.loss, alone.loss, 1e-12 * alone.loss);
      expect_close(run.gradients, alone.gradients, 1e-12, where);
      expect_counted(run, where);
      for (std::size_t rank = 0; rank < run.peaks.size(); ++rank) EXPECT_EQ(run.peaks[rank], run.forecast[rank]) << rank;
    }
  }
}

}  // namespace
}  // namespace tsprun::detail::test::dealt_models_test
