// Configuration of a decoder-only model of Llama's or GPT-2's kind: a built-in one by name, or Hugging Face's config.json. If the
// file asks for something that tsprun doesn't compute, it is refused with the field's name, never ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Kind of a model: what its blocks consist of, and how its files are written. Model code asks the questions of ModelConfig below
/// instead of testing the family. The exceptions: names, shapes and cuts of what files hold (parameters/parameters.cpp,
/// schedules/packs.cpp), the reference, and `block`, which computes Llama's alone (model/single_block.cpp).
enum class ModelFamily : std::uint8_t {
  llama,  ///< RMSNorm, rotary positions, gated MLP (SwiGLU), no biases
  gpt2    ///< LayerNorm with bias, learned positions, MLP h→f→h with GeLU, biases everywhere; n_kv = n_h, n_h·d = h
};

/// Sizes of a model; the letters are the paper's. A default-constructed one isn't a model: take a built-in one or read a file.
struct ModelConfig {
  std::string name;              ///< the built-in's name, or the file it was read from
  std::size_t hidden = 0;        ///< h
  std::size_t layers = 0;        ///< L
  std::size_t query_heads = 0;   ///< n_h
  std::size_t kv_heads = 0;      ///< n_kv; divides n_h
  std::size_t head_dim = 0;      ///< d; even with rotary positions; n_h·d may differ from h
  std::size_t intermediate = 0;  ///< f
  std::size_t vocabulary = 0;    ///< V
  std::size_t max_positions = 0;
  double norm_epsilon = 1e-6;
  double rope_theta = 10000.0;
  bool tied_embeddings = false;  ///< the head uses the embedding's matrix
  ModelFamily family = ModelFamily::llama;
  bool exact_gelu = false;       ///< for an MLP without a gate: x·Φ(x); else the tanh form
  double residual_dropout = 0;   ///< probability in training that an element of a sublayer's result is dropped
  double embedding_dropout = 0;  ///< the same for embedded tokens
  double attention_dropout = 0;  ///< the same for attention probabilities

  bool layer_norms() const { return family == ModelFamily::gpt2; }        ///< LayerNorm with bias; else RMSNorm
  bool rotary_positions() const { return family == ModelFamily::llama; }  ///< RoPE; else max_positions learned vectors
  bool gated_mlp() const { return family == ModelFamily::llama; }         ///< SwiGLU of gate and up; else GeLU of up
  bool has_biases() const { return family == ModelFamily::gpt2; }         ///< in all linear layers but the head
  bool drops() const { return residual_dropout > 0 || embedding_dropout > 0 || attention_dropout > 0; }
  /// Elements of the biases of W_Q, W_K, W_V and W_1 in all layers.
  std::size_t projection_biases() const {
    return has_biases() ? layers * (query_width() + 2 * kv_width() + mlp_inputs() * intermediate) : 0;
  }
  /// Elements that every rank has: norm parameters, all biases, learned positions.
  std::size_t replicated_parameters() const {
    return ((layer_norms() ? 2 : 1) * (2 * layers + 1) + (has_biases() ? 2 * layers : 0) +
            (rotary_positions() ? 0 : max_positions)) *
               hidden +
           projection_biases();
  }
  /// Numbers of matrices of f·h elements in an MLP, and of its pre-activations.
  std::size_t mlp_matrices() const { return gated_mlp() ? 3 : 2; }
  std::size_t mlp_inputs() const { return gated_mlp() ? 2 : 1; }

  std::size_t query_width() const { return query_heads * head_dim; }        ///< a = n_h·d
  std::size_t kv_width() const { return kv_heads * head_dim; }              ///< k = n_kv·d
  std::size_t heads_per_kv_head() const { return query_heads / kv_heads; }  ///< g

  /// Returns whether everything but the name is equal.
  bool same_model(const ModelConfig& other) const;
};

/// GPT-2's norm epsilon if a file doesn't give one.
inline constexpr double kGpt2NormEpsilon = 1e-5;

/// A configuration and the warnings of reading it.
struct LoadedConfig {
  ModelConfig config;
  std::vector<std::string> warnings;  ///< a line for each unknown field; the caller prints them once
};

/// Returns the built-in configurations: nano, micro, small, paper-7b, nano-gpt2.
const std::vector<ModelConfig>& built_in_configs();

/// Finds the configuration of `--config`: the name of a built-in one, else a file. Throws Error(refused).
LoadedConfig find_config(const std::string& name_or_file);

/// Reads a config.json. Fields for which Hugging Face has a default (num_key_value_heads, head_dim, rms_norm_eps, rope_theta,
/// max_position_embeddings, tie_word_embeddings) may be missing or null. Throws Error(refused) with file, field and what was
/// expected.
LoadedConfig read_config(const std::filesystem::path& file);

/// Parses the text of a config.json as read_config() does. Messages begin with `where`.
LoadedConfig parse_config(std::string_view text, const std::string& where);

/// Checks what must hold between the sizes, and that no product of them overflows. Throws Error(refused) with a message that
/// begins with `where`.
void check_config(const ModelConfig& config, const std::string& where);

/// Returns the model as Hugging Face's config.json. `torch_dtype` is the element type of the weights beside it ("float32",
/// "bfloat16").
std::string hugging_face_json(const ModelConfig& config, std::string_view torch_dtype);

}  // namespace tsprun::detail
