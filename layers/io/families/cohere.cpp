// Cohere (Command R): attention and MLP side by side behind one LayerNorm without a bias, rotary positions in neighbouring pairs,
// logits times logit_scale (1/16 in files without it). The head is the embedding unless the file says otherwise; attention_bias
// adds biases to W_Q, W_K, W_V and W_O. Command R+'s norms of heads (use_qk_norm) are refused,
// as is a file without a base of rotary positions.
//
// Sources: huggingface/transformers, src/transformers/models/cohere/{configuration,modular}_cohere.py; ggml-org/llama.cpp,
// src/models/command-r.cpp.
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kCohereHonoured[] = {"attention_bias", "logit_scale"};
constexpr std::string_view kCohereIgnored[] = {"model_max_length"};

constexpr WeightName kCohereWeights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
                                         {ParameterRole::attention_norm, "model.layers.{}.input_layernorm.weight"},
                                         {ParameterRole::query, "model.layers.{}.self_attn.q_proj.weight"},
                                         {ParameterRole::query_bias, "model.layers.{}.self_attn.q_proj.bias"},
                                         {ParameterRole::key, "model.layers.{}.self_attn.k_proj.weight"},
                                         {ParameterRole::key_bias, "model.layers.{}.self_attn.k_proj.bias"},
                                         {ParameterRole::value, "model.layers.{}.self_attn.v_proj.weight"},
                                         {ParameterRole::value_bias, "model.layers.{}.self_attn.v_proj.bias"},
                                         {ParameterRole::output, "model.layers.{}.self_attn.o_proj.weight"},
                                         {ParameterRole::output_bias, "model.layers.{}.self_attn.o_proj.bias"},
                                         {ParameterRole::gate, "model.layers.{}.mlp.gate_proj.weight"},
                                         {ParameterRole::up, "model.layers.{}.mlp.up_proj.weight"},
                                         {ParameterRole::down, "model.layers.{}.mlp.down_proj.weight"},
                                         {ParameterRole::final_norm, "model.norm.weight"},
                                         {ParameterRole::head, "lm_head.weight"}};

}  // namespace

ModelType cohere() {
  ModelType type = llama();
  type.name = "cohere";
  type.architectures = {"CohereForCausalLM", "CohereModel"};
  type.model.norm = Norm::layer_without_bias;
  type.model.interleaved_rotary = true;
  type.model.logits_multiplier = 0.0625;
  type.model.specs = LayerSpec{.norms = NormPlaces::shared};
  type.fields.norm_epsilon = "layer_norm_eps";
  type.fields.logits_multiplier = "logit_scale";
  type.honoured = kCohereHonoured;
  type.ignored = kCohereIgnored;
  type.read_layers = read_attention_bias;
  type.write_layers = write_attention_bias;
  type.names_rope_base = true;
  type.max_positions = 8192;
  type.norm_epsilon = 1e-5;
  type.tied_embeddings = true;
  type.weights = kCohereWeights;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
