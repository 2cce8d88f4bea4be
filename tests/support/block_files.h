// What `tsprun block` wants: a config.json, weights and inputs of a small block of Llama's kind with grouped heads.
#pragma once

#include "layers/io/safetensors_writer.h"
#include "tests/support/text_data.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::test {

/// The files, in a folder of TextData. h = 128, 8 heads, 2 of them with K and V, f = 352, B = 2, S = 16.
class BlockFiles {
 public:
  explicit BlockFiles(const TextData& folder) : folder_(folder) {
    constexpr std::size_t h = 128;
    constexpr std::size_t f = 352;
    std::ofstream(folder.path("config.json"))
        << nlohmann::json{{"hidden_size", h}, {"num_hidden_layers", 1}, {"num_attention_heads", 8}, {"num_key_value_heads", 2},
                          {"head_dim", 16},   {"intermediate_size", f}, {"vocab_size", 11},         {"model_type", "llama"}}
               .dump();
    const std::string layer = "model.layers.0.";
    write("w.safetensors", {{layer + "input_layernorm.weight", DType::f32, {h}},
                            {layer + "self_attn.q_proj.weight", DType::f32, {h, h}},
                            {layer + "self_attn.k_proj.weight", DType::f32, {32, h}},
                            {layer + "self_attn.v_proj.weight", DType::f32, {32, h}},
                            {layer + "self_attn.o_proj.weight", DType::f32, {h, h}},
                            {layer + "post_attention_layernorm.weight", DType::f32, {h}},
                            {layer + "mlp.gate_proj.weight", DType::f32, {f, h}},
                            {layer + "mlp.up_proj.weight", DType::f32, {f, h}},
                            {layer + "mlp.down_proj.weight", DType::f32, {h, f}}});
    write("x.safetensors", {{"x", DType::f32, {2, 16, h}}, {"dy", DType::f32, {2, 16, h}}});
  }

  /// Returns the command that computes this block.
  std::vector<std::string> command() const {
    return {"block",
            "--config",
            folder_.path("config.json"),
            "--weights",
            folder_.path("w.safetensors"),
            "--input",
            folder_.path("x.safetensors"),
            "--output",
            folder_.path("y.safetensors")};
  }

 private:
  void write(const std::string& name, const std::vector<safetensors::PlannedTensor>& tensors) const {
    const safetensors::Plan plan(tensors);
    safetensors::Writer writer = safetensors::Writer::create(folder_.path(name), plan);
    for (const auto& tensor : tensors) {
      std::size_t count = 1;
      for (const std::size_t size : tensor.shape) count *= size;
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i * 7 % 13) / 100;
      writer.write(tensor.name, std::span(values));
    }
    writer.publish();
  }

  const TextData& folder_;
};

}  // namespace tsprun::detail::test
