// Gemma 2: Gemma's form with norms before and behind both sublayers. Special: a window (sliding_window, 4096 in files that don't
// have the field) in every other layer from the first on, unless layer_types says otherwise; soft caps of scores and of logits
// (attn_logit_softcapping, final_logit_softcapping: 50 and 30 in files without them, none where they are null); scores are
// divided by √query_pre_attn_scalar (256) instead of √d.
//
// Sources: huggingface/transformers, src/transformers/models/gemma2/{configuration,modular}_gemma2.py; arXiv 2408.00118.
#include "layers/io/config.h"
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

#include <cmath>
#include <string>

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kScoreCap = "attn_logit_softcapping";
constexpr std::string_view kLogitCap = "final_logit_softcapping";
constexpr std::string_view kScaledBy = "query_pre_attn_scalar";
constexpr std::string_view kGemma2Honoured[] = {"attention_bias", kScoreCap, kLogitCap, kScaledBy};
constexpr std::string_view kGemma2Ignored[] = {"pretraining_tp", "max_window_layers", "cache_implementation"};
constexpr double kUsualScaledBy = 256;

// Names of Gemma 3's norms of heads, too: a model has those that its layers say.
constexpr WeightName kGemma2Weights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
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

/// Returns a cap; 0: none. `usual`: that of a file without the field.
double read_cap(ConfigFields& fields, std::string_view field, double usual) {
  if (fields.find(field) == nullptr) return fields.has(field) ? 0 : usual;
  return fields.positive(field, 1);
}

void read_gemma2(ConfigFields& fields, ModelConfig& config) {
  gemma().read_layers(fields, config);
  LayerSpec each = config.layer(0);
  each.score_cap = read_cap(fields, kScoreCap, config.type->model.layer(0).score_cap);
  config.specs = each;
  config.logit_cap = read_cap(fields, kLogitCap, config.type->model.logit_cap);
  config.attention_multiplier = 1 / std::sqrt(fields.positive(kScaledBy, kUsualScaledBy));
}

void write_gemma2(const ModelConfig& config, nlohmann::json& object) {
  gemma().write_layers(config, object);
  const auto cap = [](double value) { return value == 0 ? nlohmann::json() : nlohmann::json(value); };
  object.emplace(kScoreCap, cap(config.layer(0).score_cap));
  object.emplace(kLogitCap, cap(config.logit_cap));
  const double factor = config.attention_multiplier;
  const double whole = std::round(1 / (factor * factor));
  object.emplace(kScaledBy, 1 / std::sqrt(whole) == factor ? whole : 1 / (factor * factor));
}

}  // namespace

ModelType gemma2() {
  ModelType type = gemma();
  type.name = "gemma2";
  type.architectures = {"Gemma2ForCausalLM", "Gemma2Model"};
  type.model.specs = LayerSpec{.norms = NormPlaces::around, .score_cap = 50};
  type.model.logit_cap = 30;
  type.model.attention_multiplier = 1 / std::sqrt(kUsualScaledBy);
  type.honoured = kGemma2Honoured;
  type.ignored = kGemma2Ignored;
  type.read_layers = read_gemma2;
  type.write_layers = write_gemma2;
  type.window = WindowField::alternating;
  type.usual_window = 4096;
  type.kv_heads = 4;
  type.weights = kGemma2Weights;
  return type;
}

}  // namespace tsprun::detail::families
