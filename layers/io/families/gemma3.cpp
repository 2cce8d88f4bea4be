// Gemma 3, text: Gemma 2's form without caps, unless the file has them. Special: an RMSNorm over each head of q and of k before
// rotation, with gains of 1 + w; a window (sliding_window, 4096 in files that don't have the field) in all layers but every sixth
// (sliding_window_pattern), unless layer_types says otherwise; layers with a window rotate by rope_local_base_freq (10,000), the
// others by rope_theta (1,000,000) with the file's scaling. Rotary positions by kinds of layers in rope_parameters, as
// transformers 5 writes them, are refused, as is a file whose sliding_window is null.
//
// Sources: huggingface/transformers, src/transformers/models/gemma3/{configuration,modular}_gemma3.py; arXiv 2503.19786.
#include "layers/io/config.h"
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

#include <string>

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kLocalBase = "rope_local_base_freq";

constexpr WeightName kGemma3Weights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
                                         {ParameterRole::attention_norm, "model.layers.{}.input_layernorm.weight"},
                                         {ParameterRole::query, "model.layers.{}.self_attn.q_proj.weight"},
                                         {ParameterRole::query_bias, "model.layers.{}.self_attn.q_proj.bias"},
                                         {ParameterRole::key, "model.layers.{}.self_attn.k_proj.weight"},
                                         {ParameterRole::key_bias, "model.layers.{}.self_attn.k_proj.bias"},
                                         {ParameterRole::value, "model.layers.{}.self_attn.v_proj.weight"},
                                         {ParameterRole::value_bias, "model.layers.{}.self_attn.v_proj.bias"},
                                         {ParameterRole::query_norm, "model.layers.{}.self_attn.q_norm.weight"},
                                         {ParameterRole::key_norm, "model.layers.{}.self_attn.k_norm.weight"},
                                         {ParameterRole::output, "model.layers.{}.self_attn.o_proj.weight"},
                                         {ParameterRole::output_bias, "model.layers.{}.self_attn.o_proj.bias"},
                                         {ParameterRole::post_attention_norm, "model.layers.{}.post_attention_layernorm.weight"},
                                         {ParameterRole::mlp_norm, "model.layers.{}.pre_feedforward_layernorm.weight"},
                                         {ParameterRole::gate, "model.layers.{}.mlp.gate_proj.weight"},
                                         {ParameterRole::up, "model.layers.{}.mlp.up_proj.weight"},
                                         {ParameterRole::down, "model.layers.{}.mlp.down_proj.weight"},
                                         {ParameterRole::post_mlp_norm, "model.layers.{}.post_feedforward_layernorm.weight"},
                                         {ParameterRole::final_norm, "model.norm.weight"},
                                         {ParameterRole::head, "lm_head.weight"}};

void read_gemma3(ConfigFields& fields, ModelConfig& config) {
  gemma2().read_layers(fields, config);
  config.local_rope_theta = fields.positive(kLocalBase, config.type->model.local_rope_theta);
}

void write_gemma3(const ModelConfig& config, nlohmann::json& object) {
  gemma2().write_layers(config, object);
  object.emplace(kLocalBase, config.local_rope_theta);
}

}  // namespace

ModelType gemma3() {
  ModelType type = gemma2();
  type.name = "gemma3_text";
  type.architectures = {"Gemma3ForCausalLM", "Gemma3TextModel"};
  type.model.specs = LayerSpec{.query_key_norm = true, .norms = NormPlaces::around};
  type.model.logit_cap = 0;
  type.model.rope_theta = 1'000'000;
  type.read_layers = read_gemma3;
  type.write_layers = write_gemma3;
  type.usual_pattern = 6;
  type.local_rotary_in_windows = true;
  type.max_positions = 131072;
  type.weights = kGemma3Weights;
  return type;
}

}  // namespace tsprun::detail::families
