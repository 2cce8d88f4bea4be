// StableLM (3B, Zephyr 3B, 2 1.6B): Llama's form with LayerNorm, its bias included, in place of RMSNorm. Special: only a quarter
// of each head turns by position, unless partial_rotary_factor says otherwise; biases of W_Q, W_K and W_V where use_qkv_bias is
// true. A file without num_key_value_heads has 32. StableLM 2 12B's norms of heads (qk_layernorm) and parallel sublayers
// (use_parallel_residual) are refused, as is a head_dim that isn't h over the query heads.
//
// Sources: huggingface/transformers, src/transformers/models/stablelm/{configuration,modeling}_stablelm.py; ggml-org/llama.cpp,
// src/models/stablelm.cpp.
#include "layers/io/config.h"
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

#include <fmt/format.h>

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kStableLmFalse[] = {"qk_layernorm", "use_parallel_residual"};
constexpr std::string_view kStableLmZero[] = {"attention_dropout", "hidden_dropout"};
constexpr RestrictedFields kStableLmRestricted[] = {{"[false]", kStableLmFalse}, {"[0]", kStableLmZero}};

constexpr std::string_view kStableLmBiases = "use_qkv_bias";
constexpr Biases kStableLmWithBiases = {.query = true, .key = true, .value = true};

constexpr std::string_view kStableLmHeadDim = "head_dim";

/// By head_dim transformers would rotate, but not project.
void read_stablelm(ConfigFields& fields, ModelConfig& config) {
  if (fields.size(kStableLmHeadDim, config.head_dim) != config.head_dim)
    fields.refuse(kStableLmHeadDim, fmt::format("{}, {} over {}, or no such field", config.head_dim, config.type->fields.hidden,
                                                config.type->fields.query_heads));
  read_biases(fields, config, kStableLmBiases, kStableLmWithBiases, false);
}

constexpr WeightName kStableLmWeights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
                                           {ParameterRole::attention_norm, "model.layers.{}.input_layernorm.weight"},
                                           {ParameterRole::attention_norm_bias, "model.layers.{}.input_layernorm.bias"},
                                           {ParameterRole::query, "model.layers.{}.self_attn.q_proj.weight"},
                                           {ParameterRole::query_bias, "model.layers.{}.self_attn.q_proj.bias"},
                                           {ParameterRole::key, "model.layers.{}.self_attn.k_proj.weight"},
                                           {ParameterRole::key_bias, "model.layers.{}.self_attn.k_proj.bias"},
                                           {ParameterRole::value, "model.layers.{}.self_attn.v_proj.weight"},
                                           {ParameterRole::value_bias, "model.layers.{}.self_attn.v_proj.bias"},
                                           {ParameterRole::output, "model.layers.{}.self_attn.o_proj.weight"},
                                           {ParameterRole::mlp_norm, "model.layers.{}.post_attention_layernorm.weight"},
                                           {ParameterRole::mlp_norm_bias, "model.layers.{}.post_attention_layernorm.bias"},
                                           {ParameterRole::gate, "model.layers.{}.mlp.gate_proj.weight"},
                                           {ParameterRole::up, "model.layers.{}.mlp.up_proj.weight"},
                                           {ParameterRole::down, "model.layers.{}.mlp.down_proj.weight"},
                                           {ParameterRole::final_norm, "model.norm.weight"},
                                           {ParameterRole::final_norm_bias, "model.norm.bias"},
                                           {ParameterRole::head, "lm_head.weight"}};

}  // namespace

ModelType stablelm() {
  ModelType type = llama();
  type.name = "stablelm";
  type.architectures = {"StableLmForCausalLM", "StableLmModel"};
  type.model.norm = Norm::layer;
  type.model.rotary_fraction = 0.25;
  type.fields.norm_epsilon = "layer_norm_eps";
  type.fields.head_dim = {};
  type.fields.rotary_fraction = "partial_rotary_factor";
  type.restricted = kStableLmRestricted;
  type.ignored = {};
  type.read_layers = read_stablelm;
  type.write_layers = [](const ModelConfig& config, nlohmann::json& object) { write_biases(config, object, kStableLmBiases); };
  type.kv_heads = 32;
  type.max_positions = 4096;
  type.norm_epsilon = 1e-5;
  type.weights = kStableLmWeights;
  type.built_in = {};
  return type;
}

}  // namespace tsprun::detail::families
