// Hugging Face folders of GPT-2, loaded and evaluated under several layouts, against PyTorch's loss and logits; and saved again
// as folders that hold the same.
#include "layers/checkpoints/checkpoint.h"
#include "layers/io/data.h"
#include "layers/model/model.h"
#include "layers/parameters/model_folder.h"
#include "tests/layers/reference_support.h"
#include "tests/oracle/torch_cases.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>

namespace tsprun::detail::test::gpt2_torch_test {
namespace {

template <class Integer>
std::vector<Integer> flat(const nlohmann::json& rows) {
  std::vector<Integer> values;
  for (const auto& row : rows) {
    for (const auto& value : row) values.push_back(value.get<Integer>());
  }
  return values;
}

struct Evaluated {
  double loss = 0;
  std::vector<double> logits;  // [B, S, V]
};

/// Evaluates the folder's one batch in f64. If `save_to` isn't empty, writes a checkpoint there.
Evaluated evaluate(const std::filesystem::path& folder, const Layout& layout, const std::filesystem::path& save_to = {}) {
  const ModelConfig config = read_config(folder / "config.json").config;
  const nlohmann::json c = read_json((folder / "case.json").string());
  const auto ids = flat<std::int32_t>(c.at("ids"));
  const auto labels = flat<std::int64_t>(c.at("labels"));
  Evaluated result;
  result.logits.resize(ids.size() * config.vocabulary);
  std::mutex mutex;
  run_ranks(layout.ranks(), [&](Context& context) {
    Rank rank(context);
    Mesh mesh(context.world(), layout);
    Model model(rank, mesh, {.config = config, .dtype = DType::f64});
    model.parameters().load(ModelFolder(folder));
    const LogitsSink sink = [&](std::span<const std::size_t> rows, std::size_t first_id, const ConstTensor& logits) {
      const std::lock_guard lock(mutex);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        for (std::size_t v = 0; v < logits.size(1); ++v)
          result.logits[rows[r] * config.vocabulary + first_id + v] = logits.as<double>()[r * logits.size(1) + v];
      }
    };
    const Loss loss = model.evaluate({.batch = c.at("batch").get<std::size_t>(),
                                      .sequence = c.at("sequence").get<std::size_t>(),
                                      .ids = ids,
                                      .labels = labels},
                                     &sink);
    if (context.rank() == 0) result.loss = loss.mean;
    if (save_to.empty()) return;
    Model trained(rank, mesh, {.config = config, .dtype = DType::f64, .training = true});
    trained.parameters().load(ModelFolder(folder));
    CheckpointState state;
    state.step = 1;
    state.dtype = DType::f64;
    state.layout = layout;
    save_checkpoint(rank, context.world(), trained.parameters(), config, state, save_to);
  });
  return result;
}

/// The number of heads that fit every layout below; others only run where they do.
std::vector<Layout> layouts(std::size_t heads) {
  std::vector<Layout> all = {Layout::tsp(1), Layout::parse("zero3=3"), Layout::parse("sp=2")};
  if (heads % 2 == 0) {
    all.push_back(Layout::tsp(2));
    all.push_back(Layout::parse("tp=2"));
    all.push_back(Layout::parse("tp=2").with(TensorExchange::sequence));
  }
  return all;
}

TEST(Gpt2Folders, AreEvaluatedAsPyTorchDoesUnderEveryLayout) {
  const TemporaryDirectory directory;
  std::size_t count = 0;
  for (const auto& folder : write_torch_cases("models", directory.path("cases"), "torch_gpt2_cases.py")) {
    const ModelConfig config = read_config(folder / "config.json").config;
    EXPECT_EQ(config.attention_dropout, 0.1);  // nothing is dropped here
    const auto expected = read_tensors(folder / "expected.safetensors");
    const double loss = read_json((folder / "case.json").string()).at("loss").get<double>();
    const std::size_t number = count++;
    // Two layouts each, in turn.
    const std::vector<Layout> all = layouts(config.query_heads);
    for (const std::size_t which : {number, number + 1}) {
      const Layout& layout = all[which % all.size()];
      SCOPED_TRACE(folder.filename().string() + ", " + layout.label());
      const Evaluated found = evaluate(folder, layout);
      EXPECT_NEAR(found.loss, loss, 1e-11 * loss);
      expect_close("logits", found.logits, expected.at("logits"), 1e-11);
    }
  }
}

TEST(Gpt2Folders, AreSavedWithHuggingFacesNamesAndShapes) {
  const TemporaryDirectory directory;
  std::size_t saved = 0;
  for (const auto& folder : write_torch_cases("models", directory.path("cases"), "torch_gpt2_cases.py")) {
    nlohmann::json config = read_json((folder / "config.json").string());
    if (config.at("n_head").get<std::size_t>() % 2 != 0 || saved == 2) continue;
    ++saved;
    const std::filesystem::path to = directory.path("saved_" + std::to_string(saved));
    const double loss = evaluate(folder, Layout::tsp(2), to).loss;
    std::vector<std::string> skipped;
    const FoundCheckpoint found = find_checkpoint(to, skipped);
    const ModelConfig again = read_config(found.folder / "config.json").config;
    EXPECT_TRUE(again.same_model(read_config(folder / "config.json").config));
    const ModelFolder weights(found.folder);
    EXPECT_TRUE(weights.check(model_parameters(again)).empty());
    const ModelFolder original(folder);
    for (const Parameter& parameter : model_parameters(again)) {
      std::vector<double> values(parameter.elements());
      std::vector<double> expected(parameter.elements());
      weights.read(parameter.name, {0, parameter.rows(), 0, parameter.columns()}, std::span(values));
      original.read(parameter.name, {0, parameter.rows(), 0, parameter.columns()}, std::span(expected));
      EXPECT_EQ(values, expected) << parameter.name;
    }
    std::filesystem::copy_file(folder / "case.json", found.folder / "case.json");
    EXPECT_EQ(evaluate(found.folder, Layout::tsp(2)).loss, loss);
  }
  EXPECT_EQ(saved, 2U);
}

}  // namespace
}  // namespace tsprun::detail::test::gpt2_torch_test
