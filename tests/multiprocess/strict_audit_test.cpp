// `--audit strict`: the exit code says whether every rank held and received what was forecast, to the byte, also where files are
// read and written beside a small step.
#include "layers/io/safetensors_writer.h"
#include "tests/support/text_data.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace tsprun::detail::test::strict_audit_test {
namespace {

using nlohmann::json;
using Arguments = std::vector<std::string>;

void expect_as_forecast(Arguments arguments) {
  arguments.insert(arguments.end(), {"--audit", "strict"});
  const Finished run = run_tsprun(arguments);
  EXPECT_EQ(run.end.code, 0) << run.describe();
}

void write_tensors(const std::string& path, const std::vector<safetensors::PlannedTensor>& tensors) {
  const safetensors::Plan plan(tensors);
  safetensors::Writer writer = safetensors::Writer::create(path, plan);
  for (const auto& tensor : tensors) {
    std::size_t count = 1;
    for (const std::size_t size : tensor.shape) count *= size;
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i * 7 % 13) / 100;
    writer.write(tensor.name, std::span(values));
  }
  writer.publish();
}

TEST(StrictAudit, HoldsForABlockWhoseGradientsAreWritten) {
  const TextData data(10);
  constexpr std::size_t h = 128;
  constexpr std::size_t f = 352;
  std::ofstream(data.path("config.json")) << json{{"hidden_size", h},         {"num_hidden_layers", 1},
                                                  {"num_attention_heads", 8}, {"num_key_value_heads", 2},
                                                  {"head_dim", 16},           {"intermediate_size", f},
                                                  {"vocab_size", 11},         {"model_type", "llama"}}
                                                 .dump();
  const std::string layer = "model.layers.0.";
  write_tensors(data.path("w.safetensors"), {{layer + "input_layernorm.weight", DType::f32, {h}},
                                             {layer + "self_attn.q_proj.weight", DType::f32, {h, h}},
                                             {layer + "self_attn.k_proj.weight", DType::f32, {32, h}},
                                             {layer + "self_attn.v_proj.weight", DType::f32, {32, h}},
                                             {layer + "self_attn.o_proj.weight", DType::f32, {h, h}},
                                             {layer + "post_attention_layernorm.weight", DType::f32, {h}},
                                             {layer + "mlp.gate_proj.weight", DType::f32, {f, h}},
                                             {layer + "mlp.up_proj.weight", DType::f32, {f, h}},
                                             {layer + "mlp.down_proj.weight", DType::f32, {h, f}}});
  write_tensors(data.path("x.safetensors"), {{"x", DType::f32, {2, 16, h}}, {"dy", DType::f32, {2, 16, h}}});
  for (const auto& [layout, dtype] : {std::pair("tsp=1", "f32"), std::pair("sp=2", "bf16")}) {
    expect_as_forecast({"block", "--layout", layout, "--dtype", dtype, "--config", data.path("config.json"), "--weights",
                        data.path("w.safetensors"), "--input", data.path("x.safetensors"), "--output", data.path("y.safetensors"),
                        "--backward"});
  }
}

TEST(StrictAudit, HoldsForTrainingsThatSaveAndGoOn) {
  const TextData data(2000);
  const Arguments common = {"--data", data.text(), "--seq", "2", "--save", data.path("runs")};
  const auto train = [&](Arguments more) {
    more.insert(more.begin(), "train");
    more.insert(more.end(), common.begin(), common.end());
    expect_as_forecast(more);
  };
  train({"-n", "2", "--config", "nano", "--dtype", "bf16", "--steps", "2"});
  train({"-n", "2", "--resume", data.path("runs"), "--steps", "3"});
  expect_as_forecast({"generate", "-n", "2", "--model", data.path("runs"), "--prompt", "A", "--tokens", "3"});
  const Finished wrong = run_tsprun({"generate", "--config", "nano", "--prompt", "A", "--audit", "severe"});
  EXPECT_EQ(wrong.end.code, 2) << wrong.describe();
  EXPECT_NE(wrong.err.find("--audit severe"), std::string::npos) << wrong.err;
}

}  // namespace
}  // namespace tsprun::detail::test::strict_audit_test
