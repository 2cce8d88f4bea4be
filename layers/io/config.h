// Configuration of a decoder-only model: a built-in one by name, or Hugging Face's config.json. If the file asks for something
// that tsprun doesn't compute, it is refused with the field's name, never ignored.
#pragma once

#include "layers/io/model_type.h"

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Sizes of a layer, by which layers are cut, held and moved.
struct LayerSizes {
  std::size_t head_dim;      ///< d
  std::size_t kv_heads;      ///< n_kv
  std::size_t intermediate;  ///< f
  bool projects_keys;        ///< LayerSpec::projects_keys() and projects_values()
  bool projects_values;
  bool operator==(const LayerSizes&) const = default;
};

/// Sizes and features of a model; the letters are the paper's. A default-constructed one isn't a model: take a built-in one or
/// read a file.
struct ModelConfig : ModelSpec {
  std::string name;              ///< the built-in's name, or the file it was read from
  std::size_t hidden = 0;        ///< h
  std::size_t layers = 0;        ///< L
  std::size_t query_heads = 0;   ///< n_h
  std::size_t kv_heads = 0;      ///< n_kv; divides n_h. This and the next two are those of layers that don't say otherwise
  std::size_t head_dim = 0;      ///< d; n_h·d may differ from h
  std::size_t intermediate = 0;  ///< f
  std::size_t vocabulary = 0;    ///< V
  std::size_t layer_input = 0;   ///< w: elements of the vector of its own that each layer gets of each token; 0: none
  std::size_t max_positions = 0;
  double norm_epsilon = 1e-6;
  bool tied_embeddings = false;                    ///< the head uses the embedding's matrix
  const ModelType* type = &model_types().front();  ///< how files write the model; it doesn't decide what is computed
  double residual_dropout = 0;                     ///< probability in training that an element of a sublayer's result is dropped
  double embedding_dropout = 0;                    ///< the same for embedded tokens
  double attention_dropout = 0;                    ///< the same for attention probabilities

  /// Takes the layers of a family and the form of its files; sizes and defaults stay.
  void become(const ModelType& of) {
    type = &of;
    static_cast<ModelSpec&>(*this) = of.model;
  }

  std::size_t head_dim_of(const LayerSpec& layer) const { return layer.head_dim != 0 ? layer.head_dim : head_dim; }
  std::size_t kv_heads_of(const LayerSpec& layer) const { return layer.kv_heads != 0 ? layer.kv_heads : kv_heads; }
  std::size_t intermediate_of(const LayerSpec& layer) const {
    return layer.intermediate != 0 ? layer.intermediate : intermediate;
  }
  LayerSizes sizes_of(const LayerSpec& layer) const {
    return {head_dim_of(layer), kv_heads_of(layer), intermediate_of(layer), layer.projects_keys(), layer.projects_values()};
  }
  /// Returns the number of the layer whose k and v a layer attends to: its own, unless it takes those of another.
  std::size_t lender_of(std::size_t number) const { return number - layer(number).layers_to_lender; }
  /// Returns the last layer that attends to a layer's k and v.
  std::size_t last_borrower_of(std::size_t number) const {
    if (!layer(number).lends) return number;
    std::size_t last = layers - 1;
    while (last > number && lender_of(last) != number) --last;
    return last;
  }
  /// Returns whether some layer takes k and v of another.
  bool lends() const {
    return specs.any([](const LayerSpec& layer) { return layer.lends; });
  }
  /// Returns whether all layers have the sizes that a layer has.
  bool has_sizes_of(const LayerSpec& layer) const {
    return !specs.any([&](const LayerSpec& other) { return sizes_of(other) != sizes_of(layer); });
  }
  /// Returns the model as it would be if all its layers were like this one; its sizes are the layer's.
  ModelConfig of_layers_like(const LayerSpec& layer) const;

  /// Dims r of a head of a layer, the first ones, that turn by position; the others stay.
  std::size_t rotary_dims(const LayerSpec& layer) const {
    return static_cast<std::size_t>(static_cast<double>(head_dim_of(layer)) * rotary_fraction);
  }

  /// Returns the factor of embedded tokens.
  double embedding_factor() const {
    return embedding_multiplier * (embedding_times_root ? std::sqrt(static_cast<double>(hidden)) : 1);
  }
  /// Returns the factor of the scores q·k of a layer.
  double attention_factor(const LayerSpec& layer) const {
    return attention_multiplier > 0 ? attention_multiplier : 1 / std::sqrt(static_cast<double>(head_dim_of(layer)));
  }
  /// Returns the factor of logits.
  double logits_factor() const { return logits_multiplier / logits_divisor; }

  bool layer_norms() const { return norm != Norm::rms; }
  bool gated_mlp() const { return mlp == Mlp::swiglu || mlp == Mlp::geglu_tanh || mlp == Mlp::geglu; }
  bool drops() const { return residual_dropout > 0 || embedding_dropout > 0 || attention_dropout > 0; }
  /// Elements of the gains of q's and k's norms in a layer.
  std::size_t query_norm_width(const LayerSpec& layer) const { return norm_width(layer, query_heads); }
  std::size_t key_norm_width(const LayerSpec& layer) const {
    return layer.projects_keys() ? norm_width(layer, kv_heads_of(layer)) : 0;
  }
  /// Elements of the biases of W_Q, W_K, W_V and W_1, of the gains of q's and k's norms, and of scales of outputs, in all layers,
  /// of the gain of layers' inputs, and of the head's bias.
  std::size_t projection_vectors() const {
    return (head_bias ? vocabulary : 0) + layer_input + specs.sum(0, layers, [this](const LayerSpec& layer) {
      const Biases& biases = layer.biases;
      return (biases.query ? query_width(layer) : 0) + (biases.key ? kv_width(layer) : 0) + (biases.value ? kv_width(layer) : 0) +
             (biases.up ? intermediate_of(layer) : 0) + query_norm_width(layer) + key_norm_width(layer) +
             (layer.scales_output ? 1 : 0);
    });
  }
  /// Elements that every rank has: norm parameters, all biases, learned positions, what layers' own inputs are made with but
  /// their table.
  std::size_t replicated_parameters() const {
    const std::size_t last_biases = specs.sum(
        0, layers, [](const LayerSpec& layer) { return (layer.biases.output ? 1U : 0U) + (layer.biases.down ? 1U : 0U); });
    const std::size_t of_layers = specs.sum(0, layers, [](const LayerSpec& layer) { return layer.norm_count(); });
    const std::size_t norms = (norm == Norm::layer ? 2 : 1) * (of_layers + 1);
    const std::size_t of_inputs = 3 * layers * layer_input;  // rows of the projection, gates and results
    return (norms + last_biases + of_inputs + (learned_positions ? max_positions : 0)) * hidden + projection_vectors();
  }
  /// Numbers of matrices of f·h elements in an MLP, and of its pre-activations.
  std::size_t mlp_matrices() const { return gated_mlp() ? 3 : 2; }
  std::size_t mlp_inputs() const { return gated_mlp() ? 2 : 1; }

  // Of a layer: a = n_h·d, k = n_kv·d, and g.
  std::size_t query_width(const LayerSpec& layer) const { return query_heads * head_dim_of(layer); }
  std::size_t kv_width(const LayerSpec& layer) const { return kv_heads_of(layer) * head_dim_of(layer); }
  std::size_t heads_per_kv_head(const LayerSpec& layer) const { return query_heads / kv_heads_of(layer); }

  /// Returns whether everything but the name is equal.
  bool same_model(const ModelConfig& other) const;
  bool operator==(const ModelConfig&) const = default;

 private:
  std::size_t norm_width(const LayerSpec& layer, std::size_t heads) const {
    if (!layer.norms_queries_and_keys()) return 0;
    return layer.query_key_norm == QueryKeyNorm::rows ? heads * head_dim_of(layer) : head_dim_of(layer);
  }
};

/// A configuration and the warnings of reading it.
struct LoadedConfig {
  ModelConfig config;
  std::vector<std::string> warnings;  ///< a line for each unknown field; the caller prints them once
  bool sees_images = false;           ///< it is the text model of one that sees images, whose folder has tensors for that, too
};

/// Returns the built-in configurations, each with its name.
const std::vector<ModelConfig>& built_in_configs();

/// Finds the configuration of `--config`: the name of a built-in one, else a file. Throws Error(refused).
LoadedConfig find_config(const std::string& name_or_file);

/// Reads a config.json. Fields for which Hugging Face has a default (num_key_value_heads, head_dim, rms_norm_eps, rope_theta,
/// max_position_embeddings, tie_word_embeddings, and so on) may be missing or null. Throws Error(refused) with file, field and
/// what was expected.
LoadedConfig read_config(const std::filesystem::path& file);

/// Returns the text of a config.json, unparsed. Throws Error(refused) if it can't be read or is too large.
std::string read_config_text(const std::filesystem::path& file);

/// Parses the text of a config.json as read_config() does. Messages begin with `where`.
LoadedConfig parse_config(std::string_view text, const std::string& where);

/// Checks what must hold between the sizes, and that no product of them overflows. Throws Error(refused) with a message that
/// begins with `where`.
void check_config(const ModelConfig& config, const std::string& where);

/// Returns the model as Hugging Face's config.json. `torch_dtype` is the element type of the weights beside it ("float32",
/// "bfloat16"). `source` is the text of the config.json that `config` was read from, or empty: its other fields, and its way of
/// writing the model's, are kept. Throws Error(refused) if it isn't JSON.
std::string hugging_face_json(const ModelConfig& config, std::string_view torch_dtype, std::string_view source = {});

}  // namespace tsprun::detail
