// Phi 1, 1.5 and 2: attention and MLP side by side behind one LayerNorm, as in Cohere's form, with its bias; an MLP without a
// gate, GeLU in the tanh form; rotary positions that turn half of each head, unless partial_rotary_factor says otherwise; dropout
// in training. Special: all linear layers add biases, also the head, which the file may tie to the embedding. Norms of heads
// (qk_layernorm) are refused.
//
// Sources: huggingface/transformers, src/transformers/models/phi/{configuration,modular}_phi.py; ggml-org/llama.cpp,
// src/models/phi2.cpp.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kPhiFalse[] = {"qk_layernorm"};
constexpr RestrictedFields kPhiRestricted[] = {{"[false]", kPhiFalse}};

constexpr WeightName kPhiWeights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
                                      {ParameterRole::attention_norm, "model.layers.{}.input_layernorm.weight"},
                                      {ParameterRole::attention_norm_bias, "model.layers.{}.input_layernorm.bias"},
                                      {ParameterRole::query, "model.layers.{}.self_attn.q_proj.weight"},
                                      {ParameterRole::query_bias, "model.layers.{}.self_attn.q_proj.bias"},
                                      {ParameterRole::key, "model.layers.{}.self_attn.k_proj.weight"},
                                      {ParameterRole::key_bias, "model.layers.{}.self_attn.k_proj.bias"},
                                      {ParameterRole::value, "model.layers.{}.self_attn.v_proj.weight"},
                                      {ParameterRole::value_bias, "model.layers.{}.self_attn.v_proj.bias"},
                                      {ParameterRole::output, "model.layers.{}.self_attn.dense.weight"},
                                      {ParameterRole::output_bias, "model.layers.{}.self_attn.dense.bias"},
                                      {ParameterRole::up, "model.layers.{}.mlp.fc1.weight"},
                                      {ParameterRole::up_bias, "model.layers.{}.mlp.fc1.bias"},
                                      {ParameterRole::down, "model.layers.{}.mlp.fc2.weight"},
                                      {ParameterRole::down_bias, "model.layers.{}.mlp.fc2.bias"},
                                      {ParameterRole::final_norm, "model.final_layernorm.weight"},
                                      {ParameterRole::final_norm_bias, "model.final_layernorm.bias"},
                                      {ParameterRole::head, "lm_head.weight"},
                                      {ParameterRole::head_bias, "lm_head.bias"}};

}  // namespace

ModelType phi() {
  ModelType type = starcoder2();
  type.name = "phi";
  type.architectures = {"PhiForCausalLM", "PhiModel"};
  type.model.specs = LayerSpec{.biases = type.model.layer(0).biases, .norms = NormPlaces::shared};
  type.model.rotary_fraction = 0.5;
  type.model.head_bias = true;
  type.fields.norm_epsilon = "layer_norm_eps";
  type.fields.residual_dropout = "resid_pdrop";
  type.fields.embedding_dropout = "embd_pdrop";
  type.fields.rotary_fraction = "partial_rotary_factor";
  type.restricted = kPhiRestricted;
  type.ignored = {};
  type.read_layers = nullptr;
  type.write_layers = nullptr;
  type.window = WindowField::none;
  type.kv_heads = 0;
  type.max_positions = 2048;
  type.tied_embeddings = false;
  type.weights = kPhiWeights;
  return type;
}

}  // namespace tsprun::detail::families
