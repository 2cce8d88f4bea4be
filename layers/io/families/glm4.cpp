// GLM-4 (0414): Llama's form with four norms a layer, before and behind each sublayer, under names of their own:
// post_attention_layernorm stands before the MLP, post_self_attn_layernorm behind attention. Special: half of each head turns, in
// neighbouring pairs; gate and up lie in one gate_up_proj; attention_bias adds biases to W_Q, W_K and W_V, not to W_O, and a file
// without it has them. A file without num_key_value_heads has 2.
//
// Sources: huggingface/transformers, src/transformers/models/glm4/{configuration,modular}_glm4.py, models/glm/modular_glm.py;
// ggml-org/llama.cpp, src/models/glm4.cpp.
#include "layers/io/families/families.h"

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kGlm4Biases = "attention_bias";
constexpr Biases kGlm4WithBiases = {.query = true, .key = true, .value = true};
constexpr std::string_view kGlm4Fraction = "partial_rotary_factor";
constexpr std::string_view kGlm4Honoured[] = {kGlm4Biases, kGlm4Fraction};

constexpr WeightName kGlm4Weights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
                                       {ParameterRole::attention_norm, "model.layers.{}.input_layernorm.weight"},
                                       {ParameterRole::query, "model.layers.{}.self_attn.q_proj.weight"},
                                       {ParameterRole::query_bias, "model.layers.{}.self_attn.q_proj.bias"},
                                       {ParameterRole::key, "model.layers.{}.self_attn.k_proj.weight"},
                                       {ParameterRole::key_bias, "model.layers.{}.self_attn.k_proj.bias"},
                                       {ParameterRole::value, "model.layers.{}.self_attn.v_proj.weight"},
                                       {ParameterRole::value_bias, "model.layers.{}.self_attn.v_proj.bias"},
                                       {ParameterRole::output, "model.layers.{}.self_attn.o_proj.weight"},
                                       {ParameterRole::post_attention_norm, "model.layers.{}.post_self_attn_layernorm.weight"},
                                       {ParameterRole::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
                                       {ParameterRole::gate_up, "model.layers.{}.mlp.gate_up_proj.weight"},
                                       {ParameterRole::down, "model.layers.{}.mlp.down_proj.weight"},
                                       {ParameterRole::post_mlp_norm, "model.layers.{}.post_mlp_layernorm.weight"},
                                       {ParameterRole::final_norm, "model.norm.weight"},
                                       {ParameterRole::head, "lm_head.weight"}};

}  // namespace

ModelType glm4() {
  ModelType type = llama();
  type.name = "glm4";
  type.architectures = {"Glm4ForCausalLM", "Glm4Model"};
  type.model.rotary_fraction = 0.5;
  type.model.interleaved_rotary = true;
  type.model.specs = LayerSpec{.biases = kGlm4WithBiases, .norms = NormPlaces::around};
  type.fields.rotary_fraction = kGlm4Fraction;
  type.honoured = kGlm4Honoured;
  type.read_layers = [](ConfigFields& fields, ModelConfig& config) {
    read_biases(fields, config, kGlm4Biases, kGlm4WithBiases, true);
  };
  type.write_layers = [](const ModelConfig& config, nlohmann::json& object) { write_biases(config, object, kGlm4Biases); };
  type.kv_heads = 2;
  type.head_dim = 128;
  type.max_positions = 131072;
  type.norm_epsilon = 1.5625e-07;
  type.weights = kGlm4Weights;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
