// Qwen2 and Qwen2.5: Llama's form with biases of W_Q, W_K and W_V, and none of W_O. Small ones have the embedding as head. A
// window (sliding_window) counts only where use_sliding_window is true, which is refused; its size and max_window_layers mean
// nothing otherwise. A file without num_key_value_heads has 32.
//
// Sources: huggingface/transformers, src/transformers/models/qwen2/{configuration,modeling}_qwen2.py.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr WeightName kQwen2Weights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
                                        {ParameterRole::attention_norm, "model.layers.{}.input_layernorm.weight"},
                                        {ParameterRole::query, "model.layers.{}.self_attn.q_proj.weight"},
                                        {ParameterRole::query_bias, "model.layers.{}.self_attn.q_proj.bias"},
                                        {ParameterRole::key, "model.layers.{}.self_attn.k_proj.weight"},
                                        {ParameterRole::key_bias, "model.layers.{}.self_attn.k_proj.bias"},
                                        {ParameterRole::value, "model.layers.{}.self_attn.v_proj.weight"},
                                        {ParameterRole::value_bias, "model.layers.{}.self_attn.v_proj.bias"},
                                        {ParameterRole::output, "model.layers.{}.self_attn.o_proj.weight"},
                                        {ParameterRole::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
                                        {ParameterRole::gate, "model.layers.{}.mlp.gate_proj.weight"},
                                        {ParameterRole::up, "model.layers.{}.mlp.up_proj.weight"},
                                        {ParameterRole::down, "model.layers.{}.mlp.down_proj.weight"},
                                        {ParameterRole::final_norm, "model.norm.weight"},
                                        {ParameterRole::head, "lm_head.weight"}};

}  // namespace

ModelType qwen2() {
  ModelType type = llama();
  type.name = "qwen2";
  type.architectures = {"Qwen2ForCausalLM", "Qwen2Model"};
  type.layers.biases = {.query = true, .key = true, .value = true};
  type.window = WindowField::only_if_used;
  type.kv_heads = 32;
  type.max_positions = 32768;
  type.weights = kQwen2Weights;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
