// The built-in models, and the checks of sizes, restricted fields and overflow of a config.json.
#include "layers/io/config.h"

#include "layers/io/config_fields.h"
#include "layers/io/file.h"
#include "layers/io/multi_modal.h"
#include "layers/io/windows.h"
#include "transport/cause.h"
#include "transport/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>

namespace tsprun::detail {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;

// Restricted fields of all types.
constexpr std::string_view kFalse[] = {"is_encoder_decoder", "add_cross_attention", "use_mrope"};
constexpr std::string_view kAbsent[] = {"quantization_config"};
constexpr std::string_view kTrue[] = {"is_causal"};
constexpr std::string_view kEmpty[] = {"pruned_heads"};
constexpr RestrictedFields kRestricted[] = {{"[false]", kFalse}, {"[]", kAbsent}, {"[true]", kTrue}, {"[{}]", kEmpty}};

/// Fields of all types that don't influence what is computed.
constexpr std::string_view kIgnored[] = {"_name_or_path",
                                         "auto_map",
                                         "bos_token_id",
                                         "eos_token_id",
                                         "pad_token_id",
                                         "sep_token_id",
                                         "unk_token_id",
                                         "dtype",
                                         "torch_dtype",
                                         "transformers_version",
                                         "use_cache",
                                         "initializer_range",
                                         "return_dict",
                                         "output_attentions",
                                         "output_hidden_states",
                                         "chunk_size_feed_forward",
                                         "id2label",
                                         "label2id",
                                         "_attn_implementation",
                                         "_attn_implementation_autoset"};

/// Returns the known model_type that comes nearest to one that isn't: by spelling, else the longest with which it begins.
std::string nearest_type(const std::string& stated, const std::vector<std::string>& known) {
  std::string nearest = nearest_word(stated, known);
  if (!nearest.empty()) return nearest;
  for (const std::string& each : known) {
    if (stated.starts_with(each) && each.size() > nearest.size()) nearest = each;
  }
  return nearest;
}

/// Returns the family that a text model's file states; the first if the file doesn't say it.
const ModelType& read_type(ConfigFields& fields) {
  constexpr std::string_view kField = "model_type";
  const json* stated = fields.find(kField);
  if (stated == nullptr) return model_types().front();
  std::vector<std::string> known;
  for (const ModelType& type : model_types()) {
    if (*stated == type.name) return type;
    known.emplace_back(type.name);
    if (!type.within.name.empty()) known.emplace_back(type.within.name);
  }
  std::ranges::sort(known);
  known.erase(std::unique(known.begin(), known.end()), known.end());
  const std::string nearest = stated->is_string() ? nearest_type(stated->get_ref<const std::string&>(), known) : std::string();
  fields.refuse(kField, fmt::format("one of {} (no other family is supported{})", fmt::join(known, ", "),
                                    nearest.empty() ? "" : fmt::format("; the nearest is {}", nearest)));
}

void refuse_restricted(ConfigFields& fields, const ModelType& type) {
  fields.refuse_restricted(type.restricted, type.honoured);
  fields.refuse_restricted(kRestricted);
  fields.require_architecture(type.architectures);
}

ModelConfig built_in(const ModelType& type, const BuiltInModel& row) {
  ModelConfig config;
  config.become(type);
  config.name = row.name;
  std::size_t ModelConfig::*const members[] = {&ModelConfig::hidden,     &ModelConfig::layers,       &ModelConfig::query_heads,
                                               &ModelConfig::kv_heads,   &ModelConfig::head_dim,     &ModelConfig::intermediate,
                                               &ModelConfig::vocabulary, &ModelConfig::max_positions};
  for (std::size_t i = 0; i < row.sizes.size(); ++i) config.*members[i] = row.sizes[i];
  config.norm_epsilon = type.norm_epsilon;
  config.tied_embeddings = type.tied_embeddings;
  return config;
}

}  // namespace

bool ModelConfig::same_model(const ModelConfig& other) const {
  ModelConfig renamed = *this;
  renamed.name = other.name;
  return renamed == other;
}

ModelConfig ModelConfig::of_layers_like(const LayerSpec& layer) const {
  ModelConfig config = *this;
  config.head_dim = head_dim_of(layer);
  config.kv_heads = kv_heads_of(layer);
  config.intermediate = intermediate_of(layer);
  LayerSpec each = layer;
  each.head_dim = each.kv_heads = each.intermediate = 0;
  config.specs = each;
  return config;
}

const std::vector<ModelConfig>& built_in_configs() {
  static const std::vector<ModelConfig> configs = [] {
    std::vector<ModelConfig> all;
    for (const ModelType& type : model_types()) {
      for (const BuiltInModel& row : type.built_in) all.push_back(built_in(type, row));
    }
    return all;
  }();
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

std::string read_config_text(const std::filesystem::path& file) { return file::read_text(file, kMaxFileBytes, "a config.json"); }

LoadedConfig read_config(const std::filesystem::path& file) { return parse_config(read_config_text(file), file.string()); }

LoadedConfig parse_config(std::string_view text, const std::string& where) {
  const TextModel of = text_model(parse_json(text, where), where);
  ConfigFields fields(of.config, where, of.path);
  const ModelType& type = read_type(fields);
  const ConfigNames& names = type.fields;
  refuse_restricted(fields, type);

  ModelConfig config;
  config.become(type);
  config.name = where;
  config.mlp = fields.choice(names.activation, type.activations).mlp;
  config.hidden = fields.size(names.hidden);
  config.layers = fields.size(names.layers, std::nullopt, kMaxLayers);
  config.query_heads = fields.size(names.query_heads);
  const bool kv_heads_missing = type.kv_heads != 0 && !fields.has(names.kv_heads);
  config.kv_heads = fields.size(names.kv_heads, kv_heads_missing ? type.kv_heads : config.query_heads);
  const bool head_dim_missing = type.head_dim != 0 && !fields.has(names.head_dim);
  if (names.head_dim.empty() && !names.kv_heads.empty() && config.hidden % config.query_heads != 0)
    fields.refuse(names.query_heads, fmt::format("a divisor of {} {}", names.hidden, config.hidden));
  if (!names.head_dim.empty() && !head_dim_missing && fields.find(names.head_dim) == nullptr &&
      config.hidden % config.query_heads != 0) {
    fields.refuse(names.head_dim, fmt::format("a number, because {} {} doesn't divide {} {}", names.query_heads,
                                              config.query_heads, names.hidden, config.hidden));
  }
  config.head_dim = fields.size(names.head_dim, head_dim_missing ? type.head_dim : config.hidden / config.query_heads);
  const std::size_t intermediate = type.intermediate_per_hidden * config.hidden;
  config.intermediate = fields.size(names.intermediate, intermediate == 0 ? std::nullopt : std::optional(intermediate));
  config.vocabulary = fields.size(names.vocabulary);
  config.max_positions = fields.size(names.max_positions, type.max_positions);
  config.norm_epsilon = fields.positive(names.norm_epsilon, type.norm_epsilon);
  if (type.model.rotary_positions()) read_rope(fields, config);
  config.embedding_multiplier = fields.positive(names.embedding_multiplier, config.embedding_multiplier);
  config.residual_multiplier = fields.positive(names.residual_multiplier, config.residual_multiplier);
  config.attention_multiplier = fields.positive(names.attention_multiplier, config.attention_multiplier);
  config.logits_multiplier = fields.positive(names.logits_multiplier, config.logits_multiplier);
  config.logits_divisor = fields.positive(names.logits_divisor, config.logits_divisor);
  if (type.read_layers != nullptr) type.read_layers(fields, config);
  read_windows(fields, config);
  if (type.complete_layers != nullptr) type.complete_layers(fields, config);
  config.tied_embeddings = fields.flag("tie_word_embeddings", type.tied_embeddings);
  config.residual_dropout = fields.probability(names.residual_dropout, type.dropout);
  config.embedding_dropout = fields.probability(names.embedding_dropout, type.dropout);
  config.attention_dropout = fields.probability(names.attention_dropout, type.dropout);
  check_config(config, where);
  std::vector<std::string_view> ignored(std::begin(kIgnored), std::end(kIgnored));
  ignored.insert(ignored.end(), type.ignored.begin(), type.ignored.end());
  LoadedConfig loaded{.config = config, .warnings = fields.unknown(ignored), .sees_images = !of.warning.empty()};
  if (loaded.sees_images) loaded.warnings.insert(loaded.warnings.begin(), of.warning);
  return loaded;
}

void check_config(const ModelConfig& config, const std::string& where) {
  const auto refuse = [&](std::string_view field, const std::string& why) {
    throw Error(Cause::refused, fmt::format("{}: field \"{}\": {}", where, field, why));
  };
  const ConfigNames& names = config.type->fields;
  if (names.kv_heads.empty() && (config.kv_heads != config.query_heads || config.query_width({}) != config.hidden)) {
    refuse(names.query_heads,
           fmt::format("expected a divisor of {} {}, found {}", names.hidden, config.hidden, config.query_heads));
  }
  const auto of_layers = [](std::string_view own, std::string_view usual) { return own.empty() ? usual : own; };
  const auto check_layer = [&](const LayerSpec& layer) {
    const std::size_t kv_heads = config.kv_heads_of(layer);
    if (config.query_heads % kv_heads != 0) {
      refuse(layer.kv_heads == 0 ? names.kv_heads : of_layers(names.own_kv_heads, names.kv_heads),
             fmt::format("expected a divisor of {} {}, found {}", names.query_heads, config.query_heads, kv_heads));
    }
    const std::size_t head_dim = config.head_dim_of(layer);
    const std::string_view of_dims = layer.head_dim == 0 ? names.head_dim : of_layers(names.own_head_dim, names.head_dim);
    const std::size_t turned = config.rotary_dims(layer);
    if (!config.rotary_positions()) return;
    if (turned % 2 != 0 || turned == 0) {
      if (config.rotary_fraction == 1)
        refuse(of_dims, fmt::format("expected an even number (rotary embedding turns pairs), found {}", head_dim));
      refuse(names.rotary_fraction, fmt::format("expected a part of a head's {} dims that is an even number of them, found {}",
                                                head_dim, config.rotary_fraction));
    }
    // Without a factor for each pair the largest is that of the first or of the last.
    const bool by_pair = config.rope_scaling.kind == RopeScaling::Kind::longrope;
    if (by_pair && turned / 2 != config.rope_scaling.short_factors.size())
      refuse(of_dims, fmt::format("longrope has a factor for each pair of {} dims; a layer turns {}",
                                  2 * config.rope_scaling.short_factors.size(), turned));
    const std::size_t next = by_pair ? 1 : std::max<std::size_t>(turned / 2, 2) - 1;
    for (std::size_t pair = 0; pair < turned / 2; pair += next) {
      for (const std::size_t longest : {std::size_t{0}, kMaxConfigSize + 1}) {
        if (!std::isfinite(rope_frequency(config.rope_theta, config.rope_scaling, turned, pair, longest)))
          refuse("rope_theta", fmt::format("expected a base and a scaling with finite frequencies, found {}", config.rope_theta));
      }
    }
  };
  const bool borrow = config.specs.any([](const LayerSpec& layer) { return !layer.projects_keys(); });
  for (std::size_t number = 0; borrow && number < config.layers; ++number) {
    const LayerSpec& layer = config.layer(number);
    if (layer.projects_keys()) continue;
    const LayerSpec& lender = config.layer(number - std::min(number, layer.layers_to_lender));
    if (number < layer.layers_to_lender || !lender.projects_keys() || layer.biases.key || layer.biases.value ||
        config.head_dim_of(lender) != config.head_dim_of(layer) || config.kv_heads_of(lender) != config.kv_heads_of(layer)) {
      throw Error(
          Cause::refused,
          fmt::format("{}: layer {} can't take keys and values of the layer {} before it: expected one that computes its own, "
                      "and whose heads have the same size",
                      where, number, layer.layers_to_lender));
    }
  }
  // Layers of equal sizes are checked once, so that a file with many layers takes no time for each.
  std::optional<LayerSizes> checked;
  config.specs.for_each([&](const LayerSpec& layer) {
    if (checked == config.sizes_of(layer)) return;
    check_layer(layer);
    checked = config.sizes_of(layer);
  });
  // Every count of elements or bytes anywhere must fit into 64 bits with room to spare.
  constexpr double kMaxElements = 0x1p48;
  const auto product = [](std::size_t a, std::size_t b, std::size_t c = 1) {
    return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
  };
  const auto of_layer = [&](const LayerSpec& layer) {
    return 2 * product(config.hidden, config.query_heads, config.head_dim_of(layer)) +
           2 * product(config.hidden, config.kv_heads_of(layer), config.head_dim_of(layer)) +
           3 * product(config.hidden, config.intermediate_of(layer)) + 2 * product(config.hidden, 1);
  };
  double largest = 0;
  config.specs.for_each([&](const LayerSpec& layer) { largest = std::max(largest, of_layer(layer)); });
  const double total = static_cast<double>(config.layers) * largest + 2 * product(config.hidden, config.vocabulary) +
                       (config.learned_positions ? product(config.hidden, config.max_positions) : 0) +
                       static_cast<double>(config.layers) * product(config.vocabulary + 3 * config.hidden, config.layer_input);
  if (total > kMaxElements) {
    refuse(names.hidden, fmt::format("the model would have {:.3g} parameters; expected at most 2^48 (see also {}, {}, {} and the "
                                     "heads)",
                                     total, names.intermediate, names.vocabulary, names.layers));
  }
}

std::string hugging_face_json(const ModelConfig& config, std::string_view torch_dtype, std::string_view source) {
  const ModelType& type = *config.type;
  const ConfigNames& names = type.fields;
  json object = source.empty() ? json::object() : text_model(parse_json(source, config.name), config.name).config;
  // A field that the source has means what `config` says, however it is written.
  const auto put = [&object](std::string_view field, const auto& value) {
    if (field.empty()) return;
    if (json& at = object[std::string(field)]; at.is_null()) at = value;
  };
  // The tensors beside it bear the names of the whole model, also if the source's were those of the model without its head.
  if (json& written = object["architectures"];
      !written.is_array() || std::ranges::find(written, json(type.architectures.front())) == written.end()) {
    written = json::array({type.architectures.front()});
  }
  put("model_type", type.name);
  put(names.hidden, config.hidden);
  put(names.layers, config.layers);
  put(names.query_heads, config.query_heads);
  put(names.kv_heads, config.kv_heads);
  put(names.head_dim, config.head_dim);
  put(names.intermediate, config.intermediate);
  put(names.vocabulary, config.vocabulary);
  put(names.max_positions, config.max_positions);
  put(names.activation, std::ranges::find(type.activations, config.mlp, &ActivationName::mlp)->name);
  put(names.norm_epsilon, config.norm_epsilon);
  put(names.embedding_multiplier, config.embedding_multiplier);
  put(names.residual_multiplier, config.residual_multiplier);
  put(names.attention_multiplier, config.attention_multiplier);
  put(names.logits_multiplier, config.logits_multiplier);
  put(names.logits_divisor, config.logits_divisor);
  if (type.write_layers != nullptr) type.write_layers(config, object);
  if (type.model.rotary_positions()) write_rope(object, config);
  write_windows(config, object);
  put("tie_word_embeddings", config.tied_embeddings);
  put(names.residual_dropout, config.residual_dropout);
  put(names.embedding_dropout, config.embedding_dropout);
  put(names.attention_dropout, config.attention_dropout);
  object["torch_dtype"] = torch_dtype;
  if (object.contains("dtype")) object["dtype"] = torch_dtype;  // its name in newer files
  return object.dump(2) + "\n";
}

}  // namespace tsprun::detail
