// `tsprun block`: the same output and gradients under every layout, gradients that are those of the output, refusals.
#include "layers/io/safetensors.h"
#include "layers/io/safetensors_writer.h"
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::test::block_command_test {
namespace {

using nlohmann::json;

struct BlockFiles {
  std::string config;
  std::string weights;
  std::string input;
};

std::vector<double> random_values(std::mt19937& random, std::size_t count) {
  std::normal_distribution<double> normal(0, 0.3);
  std::vector<double> values(count);
  for (double& value : values) value = normal(random);
  return values;
}

/// A block with GQA, a head_dim of its own and odd sizes.
BlockFiles write_block(const TextData& data) {
  constexpr std::size_t h = 20;
  constexpr std::size_t a = 6 * 10;
  constexpr std::size_t k = 3 * 10;
  constexpr std::size_t f = 23;
  BlockFiles files{data.path("config.json"), data.path("weights.safetensors"), data.path("input.safetensors")};
  std::ofstream(files.config) << json{{"hidden_size", h},         {"num_hidden_layers", 5}, {"num_attention_heads", 6},
                                      {"num_key_value_heads", 3}, {"head_dim", 10},         {"intermediate_size", f},
                                      {"vocab_size", 11},         {"model_type", "llama"}}
                                     .dump();
  std::mt19937 random(3);
  const auto write = [&](const std::string& path, const std::vector<safetensors::PlannedTensor>& tensors) {
    const safetensors::Plan plan(tensors);
    safetensors::Writer writer = safetensors::Writer::create(path, plan);
    for (const auto& tensor : tensors) {
      std::size_t count = 1;
      for (const std::size_t size : tensor.shape) count *= size;
      const std::vector<double> values = random_values(random, count);
      writer.write(tensor.name, ConstBuffer(std::span(values)));
    }
    writer.publish();
  };
  const std::string layer = "model.layers.0.";
  write(files.weights, {{layer + "input_layernorm.weight", DType::f64, {h}},
                        {layer + "self_attn.q_proj.weight", DType::f64, {a, h}},
                        {layer + "self_attn.k_proj.weight", DType::f32, {k, h}},
                        {layer + "self_attn.v_proj.weight", DType::f64, {k, h}},
                        {layer + "self_attn.o_proj.weight", DType::f64, {h, a}},
                        {layer + "post_attention_layernorm.weight", DType::f64, {h}},
                        {layer + "mlp.gate_proj.weight", DType::f64, {f, h}},
                        {layer + "mlp.up_proj.weight", DType::f64, {f, h}},
                        {layer + "mlp.down_proj.weight", DType::f64, {h, f}}});
  write(files.input, {{"x", DType::f64, {2, 13, h}}, {"dy", DType::f64, {2, 13, h}}});
  return files;
}

std::map<std::string, std::vector<double>> read_tensors(const std::string& path) {
  const safetensors::File file(path);
  std::map<std::string, std::vector<double>> tensors;
  for (const safetensors::TensorInfo& tensor : file.tensors()) {
    std::vector<double> values(tensor.elements());
    file.read(tensor, Buffer(std::span(values)));
    tensors.emplace(tensor.name, std::move(values));
  }
  return tensors;
}

double product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

TEST(Block, IsTheSameUnderEveryLayoutAndHoldsWholeTensors) {
  const TextData data(3000);
  const BlockFiles files = write_block(data);
  const auto compute = [&](const char* ranks, const char* recompute) {
    const std::string output = data.path("output.safetensors");
    const Finished run = run_tsprun({"block", "-n", ranks, "--config", files.config, "--weights", files.weights, "--input",
                                     files.input, "--output", output, "--backward", "--dtype", "f64", "--recompute", recompute});
    EXPECT_EQ(run.end.code, 0) << run.describe();
    return read_tensors(output);
  };
  const auto one = compute("1", "none");
  ASSERT_EQ(one.size(), 11U);
  for (const auto& [ranks, recompute] : {std::pair("2", "none"), std::pair("3", "selective"), std::pair("6", "full")}) {
    const auto many = compute(ranks, recompute);
    for (const auto& [name, values] : one) {
      ASSERT_EQ(many.at(name).size(), values.size()) << name;
      double worst = 0;
      double largest = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        worst = std::max(worst, std::fabs(values[i] - many.at(name)[i]));
        largest = std::max(largest, std::fabs(values[i]));
      }
      EXPECT_LT(worst, 1e-11 * largest) << name << " on " << ranks;
    }
  }
}

/// dx is the gradient of Σ y·dy: a step along any direction must change it as dx says.
TEST(Block, GradientsAreThoseOfItsOutput) {
  const TextData data(3000);
  const BlockFiles files = write_block(data);
  const auto compute = [&](const std::string& input, bool backward) {
    const std::string output = data.path("output.safetensors");
    std::vector<std::string> arguments = {"block",   "-n",  "2",       "--config", files.config, "--weights", files.weights,
                                          "--input", input, "--dtype", "f64",      "--output",   output};
    if (backward) arguments.emplace_back("--backward");
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 0) << run.describe();
    return read_tensors(output);
  };
  const auto input = read_tensors(files.input);
  const auto gradients = compute(files.input, true);
  std::mt19937 random(9);
  const std::vector<double> direction = random_values(random, input.at("x").size());
  constexpr double kStep = 1e-5;
  const auto along = [&](double step) {
    std::vector<double> x = input.at("x");
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += step * direction[i];
    const std::string path = data.path("moved.safetensors");
    const safetensors::Plan plan({{"x", DType::f64, {2, 13, 20}}});
    safetensors::Writer writer = safetensors::Writer::create(path, plan);
    writer.write("x", ConstBuffer(std::span(std::as_const(x))));
    writer.publish();
    const auto output = compute(path, false);
    EXPECT_EQ(output.size(), 1U);
    return product(output.at("y"), input.at("dy"));
  };
  const double slope = (along(kStep) - along(-kStep)) / (2 * kStep);
  EXPECT_NEAR(slope, product(gradients.at("dx"), direction), 1e-6 * std::fabs(slope) + 1e-8);
}

TEST(Block, FilesThatDoNotFitAreRefused) {
  const TextData data(3000);
  const BlockFiles files = write_block(data);
  const std::string output = data.path("output.safetensors");
  const auto refused = [&](const std::string& weights, const std::string& input, const std::string& config,
                           const std::string& word) {
    const Finished run = run_tsprun(
        {"block", "-n", "2", "--config", config, "--weights", weights, "--input", input, "--output", output, "--backward"});
    EXPECT_EQ(run.end.code, 2) << run.describe();
    EXPECT_NE(run.err.find(word), std::string::npos) << run.describe();
    EXPECT_FALSE(std::filesystem::exists(output));
  };
  refused(files.input, files.input, files.config, "is missing");   // no weights in it
  refused(files.weights, files.weights, files.config, "\"x\"");    // no input in it
  refused(files.weights, files.input, "nano", "model.layers.0.");  // of other sizes
  refused(files.weights, data.path("none"), files.config, "none");
}

}  // namespace
}  // namespace tsprun::detail::test::block_command_test
