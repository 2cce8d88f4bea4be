// Hugging Face's config.json of model_type "gpt2": parsing and writing.
#include "layers/io/config_fields.h"

#include <fmt/format.h>

namespace tsprun::detail {

using nlohmann::json;

namespace {

// Hugging Face's defaults for missing fields.
constexpr std::size_t kGpt2MaxPositions = 1024;
constexpr double kGpt2Dropout = 0.1;

const std::vector<RestrictedField>& gpt2_restricted_fields() {
  static const std::vector<RestrictedField> fields = {
      {"model_type", {"gpt2"}},
      // Three names of the tanh form, and the exact form.
      {"activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"}},
      {"scale_attn_weights", {true}},
      {"scale_attn_by_inverse_layer_idx", {false}},
      {"reorder_and_upcast_attn", {false}},
      {"is_encoder_decoder", {false}},
      {"add_cross_attention", {false}},
      {"quantization_config", {}},
  };
  return fields;
}

/// Fields that are read below, or that don't influence what is computed.
constexpr std::string_view kGpt2KnownFields[] = {
    // read
    "n_embd", "n_layer", "n_head", "n_inner", "n_positions", "vocab_size", "layer_norm_epsilon", "tie_word_embeddings",
    "resid_pdrop", "embd_pdrop", "attn_pdrop", "architectures",
    // without influence
    "n_ctx", "_name_or_path", "auto_map", "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype",
    "transformers_version", "use_cache", "initializer_range", "return_dict", "output_attentions", "output_hidden_states",
    "output_past", "chunk_size_feed_forward", "id2label", "label2id", "task_specific_params", "gradient_checkpointing",
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
    "_attn_implementation", "_attn_implementation_autoset"};

}  // namespace

LoadedConfig parse_gpt2_config(const ConfigFields& fields, const std::string& where) {
  fields.refuse_restricted(gpt2_restricted_fields());
  constexpr std::string_view kArchitectures[] = {"GPT2LMHeadModel", "GPT2Model"};
  fields.require_architecture(kArchitectures);

  ModelConfig config;
  config.name = where;
  config.family = ModelFamily::gpt2;
  config.hidden = fields.size("n_embd");
  config.layers = fields.size("n_layer", std::nullopt, kMaxLayers);
  config.query_heads = fields.size("n_head");
  if (config.hidden % config.query_heads != 0) fields.refuse("n_head", fmt::format("a divisor of n_embd {}", config.hidden));
  config.kv_heads = config.query_heads;
  config.head_dim = config.hidden / config.query_heads;
  config.intermediate = fields.size("n_inner", 4 * config.hidden);
  config.vocabulary = fields.size("vocab_size");
  config.max_positions = fields.size("n_positions", kGpt2MaxPositions);
  config.norm_epsilon = fields.positive("layer_norm_epsilon", kGpt2NormEpsilon);
  config.tied_embeddings = fields.flag("tie_word_embeddings", true);
  const json* const activation = fields.find("activation_function");
  config.exact_gelu = activation != nullptr && *activation == "gelu";
  config.residual_dropout = fields.probability("resid_pdrop", kGpt2Dropout);
  config.embedding_dropout = fields.probability("embd_pdrop", kGpt2Dropout);
  config.attention_dropout = fields.probability("attn_pdrop", kGpt2Dropout);
  check_config(config, where);
  return {config, fields.unknown(kGpt2KnownFields, gpt2_restricted_fields())};
}

std::string gpt2_json(const ModelConfig& config, std::string_view torch_dtype) {
  nlohmann::ordered_json object;
  object["architectures"] = {"GPT2LMHeadModel"};
  object["model_type"] = "gpt2";
  object["n_embd"] = config.hidden;
  object["n_layer"] = config.layers;
  object["n_head"] = config.query_heads;
  object["n_inner"] = config.intermediate;
  object["n_positions"] = config.max_positions;
  object["vocab_size"] = config.vocabulary;
  object["activation_function"] = config.exact_gelu ? "gelu" : "gelu_new";
  object["layer_norm_epsilon"] = config.norm_epsilon;
  object["tie_word_embeddings"] = config.tied_embeddings;
  object["resid_pdrop"] = config.residual_dropout;
  object["embd_pdrop"] = config.embedding_dropout;
  object["attn_pdrop"] = config.attention_dropout;
  object["torch_dtype"] = torch_dtype;
  return object.dump(2) + "\n";
}

}  // namespace tsprun::detail
