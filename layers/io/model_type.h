// Meaning of config.json's model_type: what layers such models have, and the names in their files. Each family of models is a
// file in layers/io/families/, and no other code names one. Model code asks for features.
#pragma once

#include "layers/io/rope_scaling.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail {

enum class Norm : std::uint8_t {
  rms,                ///< RMSNorm: a gain
  layer,              ///< LayerNorm: a gain and a bias
  layer_without_bias  ///< LayerNorm: a gain
};

/// Where the norms of a layer stand. f is attention, then the MLP; n and n' are norms of their own.
enum class NormPlaces : std::uint8_t {
  before,  ///< x + f(n(x))
  after,   ///< x + n(f(x))
  around,  ///< x + n'(f(n(x)))
  shared   ///< one norm before both sublayers, side by side: x + attention(n(x)) + mlp(n(x))
};

enum class Mlp : std::uint8_t {
  swiglu,      ///< gated: silu(x·W_gateᵀ) ∘ (x·W_upᵀ)
  gelu_tanh,   ///< no gate: gelu(x·W_1ᵀ) in the tanh form
  gelu,        ///< no gate: x·Φ(x)
  geglu_tanh,  ///< gated: gelu(x·W_gateᵀ) ∘ (x·W_upᵀ) in the tanh form
  geglu        ///< the same with x·Φ(x)
};

/// RMSNorm of q and of k before rotation.
enum class QueryKeyNorm : std::uint8_t {
  none,
  heads,  ///< of each head; one gain [d] for all heads of q, one for those of k
  rows    ///< of all heads of a token together; gains [n_h·d] and [n_kv·d]
};

/// Linear layers of a block that add a bias.
struct Biases {
  bool query = false;
  bool key = false;
  bool value = false;
  bool output = false;
  bool up = false;  ///< W_1 of an MLP without a gate
  bool down = false;

  /// Number of those of W_Q, W_K and W_V.
  std::size_t projections() const { return (query ? 1U : 0U) + (key ? 1U : 0U) + (value ? 1U : 0U); }

  bool operator==(const Biases&) const = default;
};

/// Describes what a layer computes that other layers of its model may not.
struct LayerSpec {
  bool rotary_positions = true;  ///< q and k are rotated by position
  bool local_rotary = false;     ///< with the base ModelSpec::local_rope_theta, and no scaling
  Biases biases = {};
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  NormPlaces norms = NormPlaces::before;
  std::size_t window = 0;  ///< positions that a query sees, the last of which is its own; 0: all up to its own
  double score_cap = 0;    ///< soft cap of scores, cap·tanh(score / cap), before the softmax; 0: none

  std::size_t head_dim = 0;      ///< d of this layer's heads; 0: ModelConfig::head_dim
  std::size_t kv_heads = 0;      ///< n_kv of this layer; 0: ModelConfig::kv_heads
  std::size_t intermediate = 0;  ///< f of this layer's MLP; 0: ModelConfig::intermediate
  /// Layers to go back to the one whose k and v this layer takes, with no W_K and W_V of its own; 0: it computes its own.
  std::size_t layers_to_lender = 0;
  bool lends = false;          ///< layers behind this one take its k and v; LayerSpecs says so
  bool value_is_key = false;   ///< v is x·W_Kᵀ, before k's norm and rotation: there is no W_V
  bool norms_values = false;   ///< each head of v is divided by its root mean square, no gain; q and k are normed, too
  bool takes_input = false;    ///< behind its MLP it takes a vector of its own for each token: ModelConfig::layer_input
  bool scales_output = false;  ///< the layer's output is multiplied by a number of the files, which training doesn't change

  /// Returns whether the layer has a W_K, and whether it has a W_V.
  bool projects_keys() const { return layers_to_lender == 0; }
  bool projects_values() const { return projects_keys() && !value_is_key; }
  /// Number of these matrices.
  std::size_t kv_matrices() const { return (projects_keys() ? 1U : 0U) + (projects_values() ? 1U : 0U); }
  bool norms_queries_and_keys() const { return query_key_norm != QueryKeyNorm::none; }
  /// Returns whether what goes into the norm of v is another product than what goes into that of k.
  bool norms_own_values() const { return norms_values && projects_values(); }
  /// Returns whether both sublayers take the layer's input.
  bool side_by_side() const { return norms == NormPlaces::shared; }
  bool norm_before_attention() const { return norms != NormPlaces::after; }
  bool norm_before_mlp() const { return norms == NormPlaces::before || norms == NormPlaces::around; }
  bool norms_after() const { return norms == NormPlaces::after || norms == NormPlaces::around; }
  /// Number of norms of width h.
  std::size_t norm_count() const {
    return (norm_before_attention() ? 1U : 0U) + (norm_before_mlp() ? 1U : 0U) + (norms_after() ? 2U : 0U) +
           (takes_input ? 1U : 0U);
  }
  /// Number of tensors of width h that a backward pass needs in every recomputation mode: the sublayers' inputs, what goes into
  /// norms behind them, and what a layer with an input of its own adds to.
  std::size_t kept_residuals() const { return (side_by_side() ? 1U : 2U) + (norms_after() ? 2U : 0U) + (takes_input ? 1U : 0U); }

  bool operator==(const LayerSpec&) const = default;
};

/// The layers of a model: what all of them compute, or each of them.
class LayerSpecs {
 public:
  /// Describes any number of layers that are alike.
  LayerSpecs(const LayerSpec& each = {}) : each_(each) {}
  /// Describes the layers from the first to the last, at least one.
  explicit LayerSpecs(std::vector<LayerSpec> layers) : unlike_(std::move(layers)) {
    for (LayerSpec& layer : unlike_) layer.lends = false;
    for (std::size_t layer = 0; layer < unlike_.size(); ++layer) {
      const std::size_t back = unlike_[layer].layers_to_lender;
      if (back > 0 && back <= layer) unlike_[layer - back].lends = true;
    }
    each_ = unlike_.front();
    if (std::ranges::all_of(unlike_, [&](const LayerSpec& layer) { return layer == each_; })) unlike_.clear();
  }

  bool alike() const { return unlike_.empty(); }
  /// Returns what a layer computes. Throws std::out_of_range if it isn't described.
  const LayerSpec& operator[](std::size_t layer) const { return alike() ? each_ : unlike_.at(layer); }
  /// Returns whether a condition holds for a layer.
  template <class Condition>
  bool any(Condition&& holds) const {
    return alike() ? holds(each_) : std::ranges::any_of(unlike_, holds);
  }
  /// Calls body(layer) for each layer; once, if they are alike.
  template <class Body>
  void for_each(Body&& body) const {
    if (alike()) return body(each_);
    for (const LayerSpec& layer : unlike_) body(layer);
  }
  /// Returns the sum of count(layer) over so many layers from the first given on. Alike ones are counted once.
  template <class Count>
  std::uint64_t sum(std::size_t first, std::size_t layers, Count&& count) const {
    if (alike()) return layers * count(each_);
    std::uint64_t all = 0;
    for (std::size_t layer = first; layer < first + layers; ++layer) all += count((*this)[layer]);
    return all;
  }

  bool operator==(const LayerSpecs&) const = default;

 private:
  LayerSpec each_;                 // the first, and all unless there are others in `unlike_`
  std::vector<LayerSpec> unlike_;  // empty, or one for each layer
};

/// Describes what a model computes outside of its layers, and what all of them have in common. Sizes stand in ModelConfig.
struct ModelSpec {
  Norm norm = Norm::rms;
  bool learned_positions = false;  ///< one vector [h] for each of max_positions positions, added to the embedding
  double rope_theta = 10000.0;     ///< base of rotary positions
  RopeScaling rope_scaling = {};
  double local_rope_theta = 10000.0;  ///< base in layers that are `local_rotary`
  double rotary_fraction = 1;         ///< the part of a head's dims, from the first on, that turns: ModelConfig::rotary_dims()
  bool interleaved_rotary = false;    ///< pairs of the r dims that turn are neighbours (2i, 2i + 1), not (i, i + r/2)
  Mlp mlp = Mlp::swiglu;
  bool gains_from_one = false;        ///< gains of norms, also of heads, are 1 + w of what files have
  double embedding_multiplier = 1;    ///< of embedded tokens
  bool embedding_times_root = false;  ///< embedded tokens are multiplied by √h, too
  double residual_multiplier = 1;     ///< of a sublayer's result, where it is added to the residual
  double attention_multiplier = 0;    ///< of the scores q·k; 0: 1/√d
  double logits_multiplier = 1;       ///< of logits
  double logits_divisor = 1;          ///< of logits
  bool head_bias = false;             ///< the head adds a bias to logits, one for each entry of the vocabulary
  double logit_cap = 0;               ///< soft cap of the head's logits, cap·tanh(logit / cap); 0: none
  LayerSpecs specs = {};              ///< what each layer computes

  const LayerSpec& layer(std::size_t number) const { return specs[number]; }
  /// Returns whether layers rotate q and k.
  bool rotary_positions() const {
    return specs.any([](const LayerSpec& layer) { return layer.rotary_positions; });
  }
  /// Returns true if the only vectors of layers are the gains of two norms, one before each sublayer.
  bool has_gains_only() const {
    return norm != Norm::layer && !head_bias && !specs.any([](const LayerSpec& layer) {
      return layer.biases != Biases{} || layer.norms_queries_and_keys() || layer.norms != NormPlaces::before ||
             layer.takes_input || layer.scales_output;
    });
  }

  bool operator==(const ModelSpec&) const = default;
};

/// Role of a parameter in the model, in the order in which a model lists them: those of blocks from kFirstOfBlock to
/// kLastOfBlock.
enum class ParameterRole {
  embedding,
  positions,  ///< learned, [max_positions, h]
  // Of layers' own inputs (layers/model/layer_inputs.h), for all layers together: the table, P, and the norm's gain.
  layer_input_embedding,   ///< [V, L·w]
  layer_input_projection,  ///< [L·w, h]
  layer_input_norm,        ///< [w]
  attention_norm,
  attention_norm_bias,
  query,
  query_bias,
  key,
  key_bias,
  value,
  value_bias,
  query_norm,  ///< gain [d] of every query head, or [n_h·d] of all of them: QueryKeyNorm
  key_norm,
  query_key_value,       ///< W_Q, W_K and W_V in one matrix
  query_key_value_bias,  ///< their biases in one vector: all three or none
  output,
  output_bias,
  post_attention_norm,  ///< behind the sublayer
  post_attention_norm_bias,
  mlp_norm,
  mlp_norm_bias,
  gate,
  up,       ///< W_3; without a gate W_1
  gate_up,  ///< W_1 (the gate) and W_3 in one matrix
  up_bias,
  down,
  down_bias,
  post_mlp_norm,
  post_mlp_norm_bias,
  input_gate,       ///< of a layer's own input, [w, h]
  input_result,     ///< [h, w]
  post_input_norm,  ///< [h]
  output_scale,     ///< [1], by which the layer's output is multiplied: LayerSpec::scales_output
  final_norm,
  final_norm_bias,
  head,
  head_bias
};

inline constexpr ParameterRole kFirstOfBlock = ParameterRole::attention_norm;
inline constexpr ParameterRole kLastOfBlock = ParameterRole::output_scale;

/// Names of the fields of config.json. An empty name: such files have no such field, and its value follows from the others.
struct ConfigNames {
  std::string_view hidden, layers, query_heads, intermediate, vocabulary, max_positions, activation, norm_epsilon;
  std::string_view kv_heads{}, head_dim{};
  /// K/V heads and head size of layers that have others than the model's.
  std::string_view own_kv_heads{}, own_head_dim{};
  std::string_view residual_dropout{}, embedding_dropout{}, attention_dropout{};
  std::string_view embedding_multiplier{}, residual_multiplier{}, attention_multiplier{}, logits_multiplier{}, logits_divisor{};
  /// Part of a head's dims that turn, which may stand in an object of rope scaling, too. Empty: all of them, and no other number
  /// is supported.
  std::string_view rotary_fraction{};
  /// Base of layers that are LayerSpec::local_rotary, which rope_parameters by kinds of layers may say, too. Empty: it is that of
  /// the others.
  std::string_view local_rope_theta{};
};

/// Fields that change the computation. Only their neutral values are supported; null is always neutral.
struct RestrictedFields {
  std::string_view neutral;  ///< the values, a JSON array
  std::span<const std::string_view> fields;
};

/// A value of the field `ConfigNames::activation`, and the MLP that it means.
struct ActivationName {
  std::string_view name;
  Mlp mlp;
};

/// A parameter's name in files; {} in it stands for the number of the layer.
struct WeightName {
  ParameterRole role;
  std::string_view name;
};

/// Layers of a family that have the window sliding_window (layers/io/windows.h).
enum class WindowField : std::uint8_t {
  none,              ///< none: a number is refused, unless use_sliding_window is false beside it
  every_layer,       ///< all, unless it is null
  alternating,       ///< those that layer_types names, or all but the last of each ModelType::usual_pattern
  later_layers,      ///< if use_sliding_window is true: those that layer_types names, or all from number max_window_layers on
  unrotated_layers,  ///< if use_sliding_window is true: those that layer_types names, or those without rotary positions
};

/// A built-in configuration: hidden, layers, query_heads, kv_heads, head_dim, intermediate, vocabulary, max_positions.
struct BuiltInModel {
  std::string_view name;
  std::array<std::size_t, 8> sizes;
};

/// Models of several modalities within which a family's are the text model.
struct MultiModal {
  std::string_view name;          ///< their model_type; empty: there are none
  std::string_view architecture;  ///< the one of theirs that has a head
  std::string_view usual;         ///< values of fields that their files may leave out of text_config, an object
};

struct ModelConfig;
class ConfigFields;

/// A family of models.
struct ModelType {
  std::string_view name;                          ///< model_type
  std::array<std::string_view, 2> architectures;  ///< of causal language models; the first is written
  ModelSpec model{};                              ///< what the file doesn't say otherwise

  ConfigNames fields;
  std::span<const ActivationName> activations;   ///< the first is the default
  std::span<const RestrictedFields> restricted;  ///< beside those of all families
  /// Fields in `restricted` that restrict another family, with whose this one begins, and that this one reads.
  std::span<const std::string_view> honoured{};
  std::span<const std::string_view> ignored;  ///< fields that don't influence what is computed, beside those of all families

  /// Reads what its layers are, after their number, and other fields of the family alone; writes them into a config.json that
  /// doesn't say it. Null: the layers are those of `model`.
  void (*read_layers)(ConfigFields& fields, ModelConfig& config) = nullptr;
  void (*write_layers)(const ModelConfig& config, nlohmann::json& object) = nullptr;
  /// Completes what its layers are when it is known which of them have a window. Null: nothing is missing then.
  void (*complete_layers)(ConfigFields& fields, ModelConfig& config) = nullptr;

  WindowField window = WindowField::none;
  bool names_rope_base = false;          ///< a file without a base of rotary positions is refused
  bool local_rotary_in_windows = false;  ///< layers that have a window are LayerSpec::local_rotary
  bool rotary_in_windows_alone = false;  ///< where some layers may have a window the others don't rotate
  bool last_layer_is_full = false;       ///< where layers alternate the last has no window, whatever layer_types says
  /// Files say rotary positions by kinds of layers alone, in rope_parameters, and may scale them in proportion to their part of a
  /// head (RopeScaling::Kind::proportional).
  bool rope_by_kinds = false;

  // Hugging Face's defaults for missing fields.
  std::size_t intermediate_per_hidden = 0;  ///< 0: the field is required
  std::size_t head_dim = 0;                 ///< of a file without the field; null, and 0 here: h over the query heads
  std::size_t kv_heads = 0;                 ///< of a file without the field; null, and 0 here: as many as query heads
  std::size_t usual_window = 0;             ///< of a file without sliding_window; 0: none
  std::size_t usual_first_window = 0;       ///< number of the first layer with a window, of a file without max_window_layers
  std::string_view pattern_field{};  ///< field that says of how many alternating layers the last has no window; empty: none
  bool pattern_of_letters = false;   ///< it may hold letters instead, L for a layer with a window and G for one without
  std::size_t usual_pattern = 2;     ///< this number, of a file that doesn't say it
  std::size_t max_positions;
  double norm_epsilon;
  /// Original context in a file without original_max_position_embeddings; 0: not a family whose only rope scaling is longrope.
  std::size_t original_positions = 0;
  bool query_growth = false;  ///< a rope scaling may have llama_4_scaling_beta (RopeScaling::query_growth)
  bool tied_embeddings = false;
  double dropout = 0;

  std::span<const WeightName> weights;  ///< in the order of their roles; those that the layers don't have count for nothing
  std::span<const std::string_view> harmless_weights{};  ///< names of tensors that files may hold and nothing needs
  bool inputs_first = false;                             ///< blocks' matrices are stored [in, out]; else [out, in]
  std::string_view exported_prefix{};  ///< stands before all names but the head's in the state dict of transformers
  std::string_view prefix{};           ///< with which names in `weights` begin, but where a model was saved without its head

  MultiModal within{};  ///< models whose text model such a one may be
  std::span<const BuiltInModel> built_in{};

  /// Returns a parameter's name in files; empty if no such model has it.
  std::string_view weight(ParameterRole role) const;
};

/// Returns all families. The first is that of files without model_type.
std::span<const ModelType> model_types();
/// Returns the family of a model_type. Throws std::out_of_range if there is none.
const ModelType& model_type(std::string_view name);

}  // namespace tsprun::detail
