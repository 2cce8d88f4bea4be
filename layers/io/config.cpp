#include "layers/io/config.h"

#include "layers/io/config_fields.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <set>

namespace tsprun::detail {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;

// Hugging Face's defaults for missing fields.
constexpr std::size_t kDefaultMaxPositions = 2048;
constexpr double kDefaultNormEpsilon = 1e-6;
constexpr double kDefaultRopeTheta = 10000.0;

/// Returns the restricted fields of Llama's files.
const std::vector<RestrictedField>& restricted_fields() {
  static const std::vector<RestrictedField> fields = {
      {"model_type", {"llama", "gpt2"}},
      {"hidden_act", {"silu", "swish"}},
      {"attention_bias", {false}},
      {"mlp_bias", {false}},
      {"bias", {false}},
      {"use_bias", {false}},
      {"qkv_bias", {false}},
      {"sliding_window", {}},
      {"use_sliding_window", {false}},
      {"attention_dropout", {0}},
      {"hidden_dropout", {0}},
      {"residual_dropout", {0}},
      {"partial_rotary_factor", {1}},
      {"attn_logit_softcapping", {}},
      {"final_logit_softcapping", {}},
      {"logits_scaling", {1}},
      {"logit_scale", {1}},
      {"embedding_multiplier", {1}},
      {"residual_multiplier", {1}},
      {"attention_multiplier", {}},
      {"query_pre_attn_scalar", {}},
      {"use_qk_norm", {false}},
      {"qk_norm", {false}},
      {"parallel_attn", {false}},
      {"is_encoder_decoder", {false}},
      {"add_cross_attention", {false}},
      {"num_local_experts", {0}},
      {"num_experts", {0}},
      {"n_routed_experts", {0}},
      {"rotary_pct", {1}},
      {"alibi", {false}},
      {"clip_qkv", {}},
      {"no_rope_layers", {}},
      {"attention_chunk_size", {}},
      {"use_parallel_residual", {false}},
      {"hidden_dropout_prob", {0}},
      {"attention_probs_dropout_prob", {0}},
      {"lm_head_bias", {false}},
      {"quantization_config", {}},
  };
  return fields;
}

/// Fields that are read below, or that don't influence what is computed.
constexpr std::string_view kKnownFields[] = {
    // read
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "rope_scaling",
    "rope_parameters", "layer_types", "architectures",
    // without influence
    "_name_or_path", "auto_map", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "dtype",
    "torch_dtype", "transformers_version", "use_cache", "initializer_range", "pretraining_tp", "return_dict", "output_attentions",
    "output_hidden_states", "max_window_layers", "chunk_size_feed_forward", "id2label", "label2id", "_attn_implementation",
    "_attn_implementation_autoset"};

void refuse_restricted(const ConfigFields& fields) {
  fields.refuse_restricted(restricted_fields());
  if (const json* types = fields.find("layer_types")) {
    const bool full =
        types->is_array() && std::all_of(types->begin(), types->end(), [](const json& type) { return type == "full_attention"; });
    if (!full) fields.refuse("layer_types", "\"full_attention\" for every layer (nothing else is supported)");
  }
  constexpr std::string_view kArchitectures[] = {"LlamaForCausalLM", "LlamaModel"};
  fields.require_architecture(kArchitectures);
}

/// Returns the base of the rotary embedding, which is at the top level or, in newer files, under rope_parameters. Refuses
/// scaling.
double read_rope_theta(const ConfigFields& fields, const std::string& where) {
  double theta = fields.positive("rope_theta", kDefaultRopeTheta);
  for (const std::string_view field : {"rope_scaling", "rope_parameters"}) {
    const json* scaling = fields.find(field);
    if (scaling == nullptr) continue;
    if (!scaling->is_object()) fields.refuse(field, "null or an object of type \"default\"");
    const std::string inside = fmt::format("{}: in field \"{}\"", where, field);
    const ConfigFields inner(*scaling, inside);
    // The type is checked first, because it gives the other fields their meaning.
    for (const std::string_view type : {"rope_type", "type"}) {
      const json* value = inner.find(type);
      if (value != nullptr && *value != "default") inner.refuse(type, "\"default\" (rope scaling isn't supported)");
    }
    for (const auto& [key, value] : scaling->items()) {
      const bool neutral = key == "rope_type" || key == "type" || key == "rope_theta" || value.is_null() ||
                           (key == "partial_rotary_factor" && value == 1);
      if (!neutral) inner.refuse(key, "no such field");
    }
    const double inner_theta = inner.positive("rope_theta", theta);
    if (fields.find("rope_theta") != nullptr && inner_theta != theta) {
      inner.refuse("rope_theta", fmt::format("the same as rope_theta beside it, {}", theta));
    }
    theta = inner_theta;
  }
  return theta;
}

ModelConfig built_in(std::string name, std::array<std::size_t, 8> sizes, ModelFamily family = ModelFamily::llama) {
  ModelConfig config;
  config.family = family;
  config.name = std::move(name);
  config.hidden = sizes[0];
  config.layers = sizes[1];
  config.query_heads = sizes[2];
  config.kv_heads = sizes[3];
  config.head_dim = sizes[4];
  config.intermediate = sizes[5];
  config.vocabulary = sizes[6];
  config.max_positions = sizes[7];
  if (family == ModelFamily::gpt2) {
    config.norm_epsilon = kGpt2NormEpsilon;
    config.tied_embeddings = true;
  }
  return config;
}

}  // namespace

bool ModelConfig::same_model(const ModelConfig& other) const {
  return hidden == other.hidden && layers == other.layers && query_heads == other.query_heads && kv_heads == other.kv_heads &&
         head_dim == other.head_dim && intermediate == other.intermediate && vocabulary == other.vocabulary &&
         max_positions == other.max_positions && norm_epsilon == other.norm_epsilon && rope_theta == other.rope_theta &&
         tied_embeddings == other.tied_embeddings && family == other.family && exact_gelu == other.exact_gelu &&
         residual_dropout == other.residual_dropout && embedding_dropout == other.embedding_dropout &&
         attention_dropout == other.attention_dropout;
}

const std::vector<ModelConfig>& built_in_configs() {
  //                                             h    L  n_h n_kv  d     f      V       S
  static const std::vector<ModelConfig> configs = {
      built_in("nano", {64, 2, 8, 4, 8, 176, 256, 256}),
      built_in("micro", {256, 4, 8, 4, 32, 704, 256, 1024}),
      built_in("small", {1024, 12, 16, 8, 64, 2816, 256, 2048}),
      built_in("paper-7b", {4096, 32, 32, 32, 128, 16384, 32000, 131072}),
      built_in("nano-gpt2", {64, 2, 8, 8, 8, 256, 256, 256}, ModelFamily::gpt2),
  };
  return configs;
}

LoadedConfig find_config(const std::string& name_or_file) {
  std::vector<std::string_view> names;
  for (const ModelConfig& config : built_in_configs()) {
    if (config.name == name_or_file) return {config, {}};
    names.push_back(config.name);
  }
  std::error_code error;
  if (!std::filesystem::exists(name_or_file, error)) {
    throw Error(Cause::refused, fmt::format("--config {}: neither a built-in configuration ({}) nor a file", shown(name_or_file),
                                            fmt::join(names, ", ")));
  }
  return read_config(name_or_file);
}

LoadedConfig read_config(const std::filesystem::path& file) {
  const std::string where = file.string();
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    throw Error(Cause::refused, fmt::format("{}: {}; expected a config.json", where,
                                            std::filesystem::exists(file, error) ? "not a regular file" : "no such file"));
  }
  if (const auto bytes = std::filesystem::file_size(file, error); error || bytes > kMaxFileBytes) {
    throw Error(Cause::refused, fmt::format("{}: {} bytes; expected a config.json of at most {}", where, bytes, kMaxFileBytes));
  }
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (stream.bad() || !stream.is_open()) throw Error(Cause::refused, fmt::format("{}: can't be read", where));
  return parse_config(text, where);
}

LoadedConfig parse_config(std::string_view text, const std::string& where) {
  const json object = parse_json(text, where);
  if (!object.is_object())
    throw Error(Cause::refused, fmt::format("{}: expected a JSON object, found {}", where, shown_value(object)));
  const ConfigFields fields(object, where);
  if (const json* type = fields.find("model_type"); type != nullptr && *type == "gpt2") return parse_gpt2_config(fields, where);
  refuse_restricted(fields);

  ModelConfig config;
  config.name = where;
  config.hidden = fields.size("hidden_size");
  config.layers = fields.size("num_hidden_layers", std::nullopt, kMaxLayers);
  config.query_heads = fields.size("num_attention_heads");
  config.kv_heads = fields.size("num_key_value_heads", config.query_heads);
  if (fields.find("head_dim") == nullptr && config.hidden % config.query_heads != 0) {
    fields.refuse("head_dim", fmt::format("a number, because num_attention_heads {} doesn't divide hidden_size {}",
                                          config.query_heads, config.hidden));
  }
  config.head_dim = fields.size("head_dim", config.hidden / config.query_heads);
  config.intermediate = fields.size("intermediate_size");
  config.vocabulary = fields.size("vocab_size");
  config.max_positions = fields.size("max_position_embeddings", kDefaultMaxPositions);
  config.norm_epsilon = fields.positive("rms_norm_eps", kDefaultNormEpsilon);
  config.rope_theta = read_rope_theta(fields, where);
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);
  check_config(config, where);
  return {config, fields.unknown(kKnownFields, restricted_fields())};
}

void check_config(const ModelConfig& config, const std::string& where) {
  const auto refuse = [&](std::string_view field, const std::string& why) {
    throw Error(Cause::refused, fmt::format("{}: field \"{}\": {}", where, field, why));
  };
  if (config.family == ModelFamily::gpt2 && (config.kv_heads != config.query_heads || config.query_width() != config.hidden)) {
    refuse("n_head", fmt::format("expected a divisor of n_embd {}, found {}", config.hidden, config.query_heads));
  }
  if (config.query_heads % config.kv_heads != 0) {
    refuse("num_key_value_heads",
           fmt::format("expected a divisor of num_attention_heads {}, found {}", config.query_heads, config.kv_heads));
  }
  if (config.rotary_positions() && config.head_dim % 2 != 0) {
    refuse("head_dim", fmt::format("expected an even number (rotary embedding turns pairs), found {}", config.head_dim));
  }
  // Every count of elements or bytes anywhere must fit into 64 bits with room to spare.
  constexpr double kMaxElements = 0x1p48;
  const auto product = [](std::size_t a, std::size_t b, std::size_t c = 1) {
    return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
  };
  const double layers = static_cast<double>(config.layers);
  const double total = layers * (2 * product(config.hidden, config.query_heads, config.head_dim) +
                                 2 * product(config.hidden, config.kv_heads, config.head_dim) +
                                 3 * product(config.hidden, config.intermediate) + 2 * product(config.hidden, 1)) +
                       2 * product(config.hidden, config.vocabulary) +
                       (config.rotary_positions() ? 0 : product(config.hidden, config.max_positions));
  if (total > kMaxElements) {
    refuse("hidden_size",
           fmt::format("the model would have {:.3g} parameters; expected at most 2^48 (see also intermediate_size, "
                       "vocab_size, num_hidden_layers and the heads)",
                       total));
  }
}

std::string hugging_face_json(const ModelConfig& config, std::string_view torch_dtype) {
  if (config.family == ModelFamily::gpt2) return gpt2_json(config, torch_dtype);
  nlohmann::ordered_json object;
  object["architectures"] = {"LlamaForCausalLM"};
  object["model_type"] = "llama";
  object["hidden_size"] = config.hidden;
  object["num_hidden_layers"] = config.layers;
  object["num_attention_heads"] = config.query_heads;
  object["num_key_value_heads"] = config.kv_heads;
  object["head_dim"] = config.head_dim;
  object["intermediate_size"] = config.intermediate;
  object["vocab_size"] = config.vocabulary;
  object["max_position_embeddings"] = config.max_positions;
  object["hidden_act"] = "silu";
  object["rms_norm_eps"] = config.norm_epsilon;
  object["rope_theta"] = config.rope_theta;
  object["tie_word_embeddings"] = config.tied_embeddings;
  object["attention_bias"] = false;
  object["mlp_bias"] = false;
  object["torch_dtype"] = torch_dtype;
  return object.dump(2) + "\n";
}

}  // namespace tsprun::detail
