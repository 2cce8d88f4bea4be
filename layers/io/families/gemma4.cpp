// Gemma 4, text: Gemma 3's form with gains of norms as w. Special: an RMSNorm of each head of v, too, without a gain; scores
// aren't scaled; each layer's output is multiplied by a number, layer_scalar, which is no parameter. Layers with a window
// (sliding_window, 512 in files without the field; all but every sixth, unless layer_types says otherwise) turn whole heads of
// head_dim; the others, among them the last one whatever layer_types says, have heads of global_head_dim, of which a part turns
// (rope_type "proportional"). With attention_k_eq_v these have num_global_key_value_heads and no W_V: v is what W_K gives, before
// k's norm. Later versions of transformers write both sizes as per_layer_config, an object by numbers of layers.
//
// Of the last num_kv_shared_layers each takes k and v of the last layer of its kind before them; with use_double_wide_mlp their
// MLP is twice as wide. Where hidden_size_per_layer_input isn't 0 (256 in files without the field) each layer takes a vector of
// its own for each token behind its MLP (layers/model/layer_inputs.h), of a table that has as many rows as the embedding. Folders
// with experts (enable_moe_block) are refused. use_bidirectional_attention "vision" concerns images alone.
//
// Sources: huggingface/transformers, src/transformers/models/gemma4/{configuration,modular}_gemma4.py; modeling_rope_utils.py.
#include "layers/io/config.h"
#include "layers/io/config_fields.h"
#include "layers/io/families/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::families {

namespace {

constexpr std::string_view kFullHeadDim = "global_head_dim";
constexpr std::string_view kFullKvHeads = "num_global_key_value_heads";
constexpr std::string_view kByLayer = "per_layer_config";
constexpr std::string_view kKeysAreValues = "attention_k_eq_v";
constexpr std::string_view kSharing = "num_kv_shared_layers";
constexpr std::string_view kWide = "use_double_wide_mlp";
constexpr std::string_view kInputs = "hidden_size_per_layer_input";
constexpr std::string_view kInputRows = "vocab_size_per_layer_input";
constexpr std::string_view kExperts = "enable_moe_block";
constexpr std::string_view kGemma4BothWays = "use_bidirectional_attention";
constexpr std::string_view kCap = "final_logit_softcapping";
constexpr std::size_t kUsualFullHeadDim = 512;
constexpr std::size_t kUsualInputs = 256;
constexpr std::size_t kUsualInputRows = 262144;

constexpr std::string_view kGemma4Usual =
    R"({"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
        "num_attention_heads": 8})";
constexpr std::string_view kGemma4Honoured[] = {"attention_bias", kCap, "num_experts"};
// Sizes that mean nothing without experts among them.
constexpr std::string_view kGemma4Ignored[] = {"pretraining_tp", "cache_implementation", "num_experts", "top_k_experts",
                                               "moe_intermediate_size"};
// Fields by which other families, or later versions of transformers, say what this one says otherwise.
constexpr std::string_view kGemma4Absent[] = {"rope_theta", "rope_scaling", "rope_local_base_freq"};
constexpr std::string_view kGemma4Images[] = {kGemma4BothWays};
constexpr RestrictedFields kGemma4Restricted[] = {{"[]", kGemma4Absent}, {"[\"vision\", false]", kGemma4Images}};

constexpr WeightName kGemma4Weights[] = {{ParameterRole::embedding, "model.embed_tokens.weight"},
                                         {ParameterRole::layer_input_embedding, "model.embed_tokens_per_layer.weight"},
                                         {ParameterRole::layer_input_projection, "model.per_layer_model_projection.weight"},
                                         {ParameterRole::layer_input_norm, "model.per_layer_projection_norm.weight"},
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
                                         {ParameterRole::input_gate, "model.layers.{}.per_layer_input_gate.weight"},
                                         {ParameterRole::input_result, "model.layers.{}.per_layer_projection.weight"},
                                         {ParameterRole::post_input_norm, "model.layers.{}.post_per_layer_input_norm.weight"},
                                         {ParameterRole::output_scale, "model.layers.{}.layer_scalar"},
                                         {ParameterRole::final_norm, "model.norm.weight"},
                                         {ParameterRole::head, "lm_head.weight"}};

void read_gemma4(ConfigFields& fields, ModelConfig& config) {
  fields.refuse_restricted(kGemma4Restricted);
  if (fields.flag(kExperts, false)) fields.refuse(kExperts, "false (folders without experts alone are supported)");
  config.layer_input = fields.integer<std::size_t>(kInputs, 0, kMaxConfigSize, kUsualInputs);
  if (config.layer_input > 0 && fields.size(kInputRows, kUsualInputRows) != config.vocabulary)
    fields.refuse(kInputRows, fmt::format("{} as {} says (a table of another number of rows isn't supported; a file without the "
                                          "field means {})",
                                          config.vocabulary, config.type->fields.vocabulary, kUsualInputRows));
  fields.find(kInputRows);
  read_attention_bias(fields, config);
  config.logit_cap = fields.find(kCap) == nullptr ? 0 : fields.positive(kCap, 1);
}

/// What the file says of layers beside the window.
struct Gemma4Sizes {
  std::size_t head_dim;  ///< of layers without a window, as the next two
  std::size_t kv_heads;
  bool keys_are_values;
  std::size_t sharing;  ///< the last ones, that take k and v of others
  bool wide;

  Gemma4Sizes(ConfigFields& fields, const ModelConfig& config)
      : head_dim(fields.size(kFullHeadDim, fields.has(kFullHeadDim) ? config.head_dim : kUsualFullHeadDim)),
        kv_heads(fields.size(kFullKvHeads, config.kv_heads)),
        keys_are_values(fields.flag(kKeysAreValues, false)),
        sharing(fields.integer<std::size_t>(kSharing, 0, config.layers, 0)),
        wide(fields.flag(kWide, false)) {
    if (!keys_are_values) kv_heads = config.kv_heads;
    if (const nlohmann::json* by_layer = fields.find(kByLayer)) read_by_layer(fields, *by_layer, config);
  }

 private:
  /// Reads sizes that each layer without a window has an entry of, and all the same: {"05": {"head_dim": 512}, …}.
  void read_by_layer(const ConfigFields& fields, const nlohmann::json& by_layer, const ModelConfig& config) {
    constexpr std::string_view kExpected =
        "an object with an entry for each layer without a window, all alike, of \"head_dim\" and \"num_key_value_heads\" (other "
        "layers and fields aren't supported)";
    if (!by_layer.is_object()) fields.refuse(kByLayer, kExpected);
    std::vector<bool> missing;
    for (std::size_t layer = 0; layer < config.layers; ++layer) missing.push_back(config.layer(layer).window == 0);
    head_dim = config.head_dim;
    kv_heads = config.kv_heads;
    for (const auto& [number, sizes] : by_layer.items()) {
      std::size_t layer = 0;
      const char* const end = number.data() + number.size();
      const auto [rest, error] = std::from_chars(number.data(), end, layer);
      if (error != std::errc() || rest != end || layer >= missing.size() || !missing[layer] || !sizes.is_object() ||
          sizes != *by_layer.begin())
        fields.refuse(kByLayer, kExpected);
      missing[layer] = false;
      for (const auto& [field, size] : sizes.items()) {
        if ((field != "head_dim" && field != "num_key_value_heads") || !size.is_number_unsigned() || size == 0 ||
            size > kMaxConfigSize)
          fields.refuse(kByLayer, kExpected);
        (field == "head_dim" ? head_dim : kv_heads) = size.get<std::size_t>();
      }
    }
    if (std::ranges::find(missing, true) != missing.end()) fields.refuse(kByLayer, kExpected);
  }
};

/// Returns how many layers stand between a sharing layer and the one whose k and v it takes, of `own` that compute their own.
std::size_t layers_to_lender(const ConfigFields& fields, const ModelConfig& config, std::size_t layer, std::size_t own) {
  for (std::size_t lender = own; lender-- > 0;) {
    if ((config.layer(lender).window > 0) == (config.layer(layer).window > 0)) return layer - lender;
  }
  fields.refuse(kSharing,
                fmt::format("a number of layers before which there is one like layer {}, with or without a window", layer));
}

void complete_gemma4(ConfigFields& fields, ModelConfig& config) {
  const Gemma4Sizes of(fields, config);
  const std::size_t own = config.layers - of.sharing;
  const auto unlike = [](std::size_t size, std::size_t usual) { return size == usual ? 0 : size; };
  std::vector<LayerSpec> layers;
  for (std::size_t i = 0; i < config.layers; ++i) {
    LayerSpec& layer = layers.emplace_back(config.layer(i));
    const bool full = layer.window == 0;
    const bool shares = i >= own;
    layer.head_dim = full ? unlike(of.head_dim, config.head_dim) : 0;
    layer.kv_heads = full ? unlike(of.kv_heads, config.kv_heads) : 0;
    layer.intermediate = shares && of.wide ? 2 * config.intermediate : 0;
    layer.layers_to_lender = shares ? layers_to_lender(fields, config, i, own) : 0;
    layer.value_is_key = full && of.keys_are_values && !shares;
    layer.norms_values = !shares;
    layer.takes_input = config.layer_input > 0;
    layer.biases.key = layer.biases.key && !shares;
    layer.biases.value = layer.biases.value && !shares && !layer.value_is_key;
  }
  config.specs = LayerSpecs(std::move(layers));
}

void write_gemma4(const ModelConfig& config, nlohmann::json& object) {
  write_attention_bias(config, object);
  const LayerSpec& full = config.layer(config.layers - 1);
  const auto any = [&](auto&& holds) { return config.specs.any(holds); };
  const bool keys_are_values = any([](const LayerSpec& layer) { return layer.value_is_key; });
  object.emplace(kFullHeadDim, full.head_dim == 0 ? config.head_dim : full.head_dim);
  object.emplace(kKeysAreValues, keys_are_values);
  if (keys_are_values) object.emplace(kFullKvHeads, full.kv_heads == 0 ? config.kv_heads : full.kv_heads);
  object.emplace(kSharing,
                 config.specs.sum(0, config.layers, [](const LayerSpec& layer) { return layer.layers_to_lender > 0 ? 1U : 0U; }));
  object.emplace(kWide, any([](const LayerSpec& layer) { return layer.intermediate > 0; }));
  object.emplace(kInputs, config.layer_input);
  object.emplace(kInputRows, config.vocabulary);
  object.emplace(kCap, config.logit_cap == 0 ? nlohmann::json() : nlohmann::json(config.logit_cap));
}

}  // namespace

ModelType gemma4() {
  ModelType type = gemma3();
  type.name = "gemma4_text";
  type.architectures = {"Gemma4ForCausalLM", "Gemma4TextModel"};
  type.model.specs =
      LayerSpec{.query_key_norm = QueryKeyNorm::heads, .norms = NormPlaces::around, .norms_values = true, .scales_output = true};
  type.model.gains_from_one = false;
  type.model.attention_multiplier = 1;
  type.model.rope_scaling = {.kind = RopeScaling::Kind::proportional, .turned_part = 0.25};
  type.honoured = kGemma4Honoured;
  type.ignored = kGemma4Ignored;
  type.read_layers = read_gemma4;
  type.write_layers = write_gemma4;
  type.complete_layers = complete_gemma4;
  type.pattern_field = {};
  type.usual_window = 512;
  type.last_layer_is_full = true;
  type.rope_by_kinds = true;
  type.weights = kGemma4Weights;
  type.fields.own_kv_heads = kFullKvHeads;
  type.fields.own_head_dim = kFullHeadDim;
  type.within = {"gemma4", "Gemma4ForConditionalGeneration", kGemma4Usual};
  return type;
}

}  // namespace tsprun::detail::families
