// NaN and infinity from the command line: every model command names the first tensor that isn't finite, and ends with code 1.
#include "layers/io/safetensors.h"
#include "layers/io/safetensors_writer.h"
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace tsprun::detail::test::not_finite_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A trained model as a folder of Hugging Face's, to be spoiled.
class NotFiniteCommands : public ::testing::Test {
 protected:
  NotFiniteCommands() : data_(3000) {
    const Finished run = run_tsprun({"train", "-n", "1", "--config", "nano", "--data", data_.text(), "--seq", "16", "--batch",
                                     "1", "--steps", "1", "--save", data_.path("saved")});
    EXPECT_EQ(run.end.code, 0) << run.describe();
    std::filesystem::create_directories(folder());
    std::filesystem::copy(data_.path("saved/step-000001/config.json"), folder() + "/config.json");
  }
  std::string folder() const { return data_.path("model"); }

  /// The model with one element changed.
  void spoil(const std::string& name, std::size_t element, float value) {
    const safetensors::File whole(data_.path("saved/step-000001/model.safetensors"));
    std::vector<safetensors::PlannedTensor> plan;
    for (const safetensors::TensorInfo& tensor : whole.tensors()) plan.push_back({tensor.name, DType::f32, tensor.shape});
    std::filesystem::remove(folder() + "/model.safetensors");
    const safetensors::Plan planned(plan);
    safetensors::Writer writer = safetensors::Writer::create(folder() + "/model.safetensors", planned);
    bool found = false;
    for (const safetensors::TensorInfo& tensor : whole.tensors()) {
      std::vector<float> values(tensor.elements());
      whole.read(tensor, Buffer(std::span(values)));
      if (tensor.name == name) values.at(element) = value;
      found = found || tensor.name == name;
      writer.write(tensor.name, ConstBuffer(std::span(std::as_const(values))));
    }
    writer.publish();
    ASSERT_TRUE(found) << name;
  }

  void expect_failure(std::vector<std::string> arguments, const std::vector<std::string>& words) {
    const std::string report = data_.path("report.json");
    arguments.insert(arguments.end(), {"--json", report});
    const Finished run = run_tsprun(arguments);
    EXPECT_EQ(run.end.code, 1) << run.describe();
    for (const std::string& word : words) EXPECT_NE(run.err.find(word), std::string::npos) << word << "\n" << run.describe();
    EXPECT_EQ(run.err.find("--lr"), std::string::npos) << run.describe();
    EXPECT_EQ(run.out.find("loss nan"), std::string::npos) << run.describe();
    const nlohmann::json failure = read_json(report).at("failure");
    ASSERT_TRUE(failure.is_object()) << failure;
    EXPECT_NE(failure.dump().find(words.back()), std::string::npos) << failure;
  }

  std::vector<std::string> command(const std::string& name, const std::string& layout) const {
    std::vector<std::string> arguments = {name, "--layout", layout, "--model", folder()};
    if (name == "generate") {
      arguments.insert(arguments.end(), {"--prompt", "line 1", "--tokens", "3"});
    } else {
      arguments.insert(arguments.end(), {"--data", data_.text(), "--seq", "32", "--batch", "2"});
    }
    if (name == "train") arguments.insert(arguments.end(), {"--steps", "2"});
    return arguments;
  }

  TextData data_;
};

TEST_F(NotFiniteCommands, ANanInTheWeightsIsNamedWhenTheyAreLoaded) {
  const std::string file = folder() + "/model.safetensors: ";
  spoil("model.layers.1.self_attn.q_proj.weight", 5, kNan);
  for (const char* name : {"eval", "train", "generate"}) {
    expect_failure(command(name, "tsp=2"), {file, "model.layers.1.self_attn.q_proj.weight", "holds nan at [0, 5]"});
  }
  // The text has no such byte: no pass would ever see it.
  spoil("model.embed_tokens.weight", 250 * 64 + 3, std::numeric_limits<float>::infinity());
  expect_failure(command("train", "tsp=2"), {file, "model.embed_tokens.weight", "holds inf at [250, 3]"});
}

TEST_F(NotFiniteCommands, NumbersThatOverflowAreTracedToTheirTensor) {
  spoil("model.layers.1.mlp.up_proj.weight", 2, 3e38F);
  for (const char* name : {"eval", "train", "generate"}) {
    expect_failure(command(name, "tsp=2"), {"rank ", "layer 1, MLP, forward", "inf at ["});
  }
}

TEST_F(NotFiniteCommands, ABlocksResultsAreNotWritten) {
  spoil("model.layers.0.self_attn.v_proj.weight", 2, 3e38F);
  const std::string input = data_.path("input.safetensors");
  const safetensors::Plan plan({{"x", DType::f32, {1, 8, 64}}, {"dy", DType::f32, {1, 8, 64}}});
  safetensors::Writer writer = safetensors::Writer::create(input, plan);
  std::vector<float> values(8 * 64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3;
  for (const char* name : {"x", "dy"}) writer.write(name, ConstBuffer(std::span(std::as_const(values))));
  writer.publish();
  const std::string output = data_.path("output.safetensors");
  expect_failure({"block", "-n", "2", "--config", folder() + "/config.json", "--weights", folder() + "/model.safetensors",
                  "--input", input, "--output", output, "--backward"},
                 {"weren't written", "layer 0, attention, forward: values", "inf at ["});
  EXPECT_FALSE(std::filesystem::exists(output));
}

}  // namespace
}  // namespace tsprun::detail::test::not_finite_test
