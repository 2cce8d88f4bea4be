// The reference in f64 against PyTorch's autograd on random configurations: MHA, GQA, one K/V head, head_dim ≠ h/n_h, odd S, S =
// 1, B > 1, tied embeddings, weights of every stored type.
#include "layers/io/data.h"
#include "layers/parameters/model_folder.h"
#include "tests/layers/reference_support.h"
#include "tests/oracle/torch_cases.h"

#include <gtest/gtest.h>

#include <string_view>

namespace tsprun::detail::reference_torch_test {
namespace {

using Tensors = reference::Tensors<double>;

constexpr double kTolerance = 1e-11;

/// "model.layers.3." or "h.3." of such a name; empty outside the blocks.
std::string layer_of(std::string_view name) {
  for (const std::string_view layers : {"model.layers.", "h."}) {
    if (name.starts_with(layers)) return std::string(name.substr(0, name.find('.', layers.size()) + 1));
  }
  return {};
}

/// expected: the witness' file, in which gradients bear "grad.".
void expect_gradients(const Tensors& gradients, const Tensors& expected) {
  std::map<std::string, double> largest;  // of each layer
  for (const auto& [name, values] : gradients) {
    double& norm = largest[layer_of(name)];
    norm = std::max(norm, test::norm(expected.at("grad." + name)));
  }
  for (const auto& [name, values] : gradients) {
    test::expect_close(name, values, expected.at("grad." + name), kTolerance, largest.at(layer_of(name)));
  }
}

TEST(ReferenceBlock, EqualsPyTorch) {
  const test::TemporaryDirectory directory;
  for (const auto& folder : test::write_torch_cases("blocks", directory.path("cases"))) {
    const ModelConfig config = read_config(folder / "config.json").config;
    const safetensors::File input(folder / "X.safetensors");
    ASSERT_NE(input.find("x"), nullptr);
    const std::vector<std::size_t> shape = input.find("x")->shape;
    ASSERT_EQ(shape.size(), 3U);
    SCOPED_TRACE(folder.filename().string() + ", x " + safetensors::describe(shape));
    const Tensors x = test::read_tensors(folder / "X.safetensors");
    const Tensors expected = test::read_tensors(folder / "expected.safetensors");

    const auto result =
        reference::block(config, shape[0], shape[1], test::read_tensors(folder / "W.safetensors"), x.at("x"), x.at("dy"));
    test::expect_close("y", result.y, expected.at("y"), kTolerance);
    test::expect_close("dx", result.dx, expected.at("dx"), kTolerance);
    EXPECT_EQ(result.gradients.size() + 2, expected.size());
    expect_gradients(result.gradients, expected);
  }
}

/// The mean loss over the windows of a folder's data.bin.
double evaluated(const ModelConfig& config, const Tensors& weights, const std::filesystem::path& file, std::size_t sequence) {
  const TokenStream stream({file});
  double sum = 0;
  for (std::uint64_t index = 0; index < window_count(stream.size(), sequence); ++index) {
    const Window at = window(stream.size(), sequence, index);
    std::vector<Token> tokens(at.length + 1);
    stream.read(at.first, tokens);
    const std::vector<std::int64_t> labels(tokens.begin() + 1, tokens.end());
    const auto ids = std::span<const Token>(tokens).first(at.length);
    sum += static_cast<double>(at.length) * reference::model<double>(config, 1, at.length, weights, ids, labels, false).loss;
  }
  return sum / static_cast<double>(stream.size() - 1);
}

template <class Integer>
std::vector<Integer> flat(const nlohmann::json& rows) {
  std::vector<Integer> values;
  for (const auto& row : rows) {
    for (const auto& value : row) values.push_back(value.get<Integer>());
  }
  return values;
}

/// All of a model's weights, by the names that the model gives them.
Tensors weights_of(const ModelFolder& weights, const ModelConfig& config) {
  Tensors tensors;
  for (const Parameter& parameter : model_parameters(config)) {
    std::vector<double>& values = tensors[parameter.name];
    values.resize(parameter.elements());
    weights.read(parameter.name, {0, parameter.rows(), 0, parameter.columns()}, std::span(values));
  }
  return tensors;
}

void expect_model(const std::filesystem::path& folder) {
  SCOPED_TRACE(folder.filename().string());
  const ModelConfig config = read_config(folder / "config.json").config;
  const nlohmann::json c = test::read_json((folder / "case.json").string());
  const ModelFolder file(folder);
  EXPECT_TRUE(file.check(model_parameters(config)).empty());
  const Tensors weights = weights_of(file, config);
  const Tensors expected = test::read_tensors(folder / "expected.safetensors");

  const auto result = reference::model<double>(config, c.at("batch").get<std::size_t>(), c.at("sequence").get<std::size_t>(),
                                               weights, flat<std::int32_t>(c.at("ids")), flat<std::int64_t>(c.at("labels")));
  const double loss = c.at("loss").get<double>();
  EXPECT_NEAR(result.loss, loss, kTolerance * loss);
  test::expect_close("logits", result.logits, expected.at("logits"), kTolerance);
  EXPECT_EQ(result.gradients.size() + 1, expected.size());
  expect_gradients(result.gradients, expected);

  const double eval_loss = c.at("eval_loss").get<double>();
  EXPECT_NEAR(evaluated(config, weights, folder / "data.bin", c.at("eval_sequence").get<std::size_t>()), eval_loss,
              kTolerance * eval_loss);
}

TEST(ReferenceModel, EqualsPyTorch) {
  const test::TemporaryDirectory directory;
  for (const auto& folder : test::write_torch_cases("models", directory.path("cases"))) expect_model(folder);
}

TEST(ReferenceGpt2, EqualsPyTorchAndReadsHuggingFacesNames) {
  const test::TemporaryDirectory directory;
  for (const auto& folder : test::write_torch_cases("models", directory.path("cases"), "torch_gpt2_cases.py")) {
    expect_model(folder);
  }
}

}  // namespace
}  // namespace tsprun::detail::reference_torch_test
