// Qwen3: Qwen2's form without its biases. Special: an RMSNorm over each head of q and of k before rotation, with one gain of
// head_dim for all heads of q and one for those of k; a head_dim of its own, 128 in files that don't have the field.
//
// Sources: huggingface/transformers, src/transformers/models/qwen3/{configuration,modular}_qwen3.py; ggml-org/llama.cpp,
// src/models/qwen3.cpp.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr WeightName kQwen3Weights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
                                        {ParameterRole::attention_norm, "model.layers.{}.input_layernorm.weight"},
                                        {ParameterRole::query, "model.layers.{}.self_attn.q_proj.weight"},
                                        {ParameterRole::key, "model.layers.{}.self_attn.k_proj.weight"},
                                        {ParameterRole::value, "model.layers.{}.self_attn.v_proj.weight"},
                                        {ParameterRole::query_norm, "model.layers.{}.self_attn.q_norm.weight"},
                                        {ParameterRole::key_norm, "model.layers.{}.self_attn.k_norm.weight"},
                                        {ParameterRole::output, "model.layers.{}.self_attn.o_proj.weight"},
                                        {ParameterRole::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
                                        {ParameterRole::gate, "model.layers.{}.mlp.gate_proj.weight"},
                                        {ParameterRole::up, "model.layers.{}.mlp.up_proj.weight"},
                                        {ParameterRole::down, "model.layers.{}.mlp.down_proj.weight"},
                                        {ParameterRole::final_norm, "model.norm.weight"},
                                        {ParameterRole::head, "lm_head.weight"}};

}  // namespace

ModelType qwen3() {
  ModelType type = qwen2();
  type.name = "qwen3";
  type.architectures = {"Qwen3ForCausalLM", "Qwen3Model"};
  type.layers.biases = {};
  type.layers.query_key_norm = true;
  type.head_dim = 128;
  type.weights = kQwen3Weights;
  return type;
}

}  // namespace tsprun::detail::families
