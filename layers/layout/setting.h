// Input of the exact counts: a model, its batch, and how many bytes an element has in memory and on the wire. Symbols as in
// docs/algorithms.md.
#pragma once

#include "layers/io/config.h"
#include "tsprun/types.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tsprun::detail {

/// Recomputation mode (`--recompute`): what a layer keeps of its forward pass for its backward pass. In every mode, norm outputs
/// and σ(gate)∘up are computed again, attention probabilities are never stored as a whole, and gathered K and V aren't kept.
enum class Recompute : std::uint8_t {
  none,       ///< keeps x1, x2 (the sublayers' inputs), Q, K, V, O, the log-sum-exp, gate and up
  selective,  ///< keeps x1, x2, O, the log-sum-exp
  full        ///< keeps x1, x2
};

/// Bytes of an element, by its use.
struct ElementBytes {
  std::uint64_t element;      ///< β: a parameter or an activation
  std::uint64_t accumulated;  ///< β_a: an accumulated element on the wire, a gradient's partial sum
  std::uint64_t lse;          ///< β_l: a log-sum-exp

  /// Returns the sizes of a run in f32, f64 or bf16; bf16 accumulates in f32.
  static constexpr ElementBytes of(DType dtype) {
    const std::uint64_t sum = dtype == DType::f64 ? 8 : 4;
    return {size_of(dtype), sum, sum};
  }
  /// Returns the dtype that was given to of().
  constexpr DType dtype() const {
    if (element == size_of(DType::f64)) return DType::f64;
    return element == size_of(DType::f32) ? DType::f32 : DType::bf16;
  }
};

/// Returns ranks − 1, the number of hops after which a chunk that travels a ring has reached all ranks.
inline std::uint64_t hops(int ranks) { return static_cast<std::uint64_t>(ranks - 1); }

/// A model with its input, element sizes and recomputation mode.
struct Setting {
  ModelConfig model;
  std::size_t batch = 1;     ///< B
  std::size_t sequence = 1;  ///< S
  ElementBytes bytes = ElementBytes::of(DType::f32);
  Recompute recompute = Recompute::none;
  std::size_t micro_batches = 1;  ///< M: parts of each replica's batch that a training step computes one after another
  /// Lengths of the documents that are packed into each sequence, S together, which attention doesn't cross; empty: one document.
  std::vector<std::uint32_t> documents = {};

  std::uint64_t tokens() const { return batch * sequence; }                  ///< BS
  std::uint64_t hidden_elements() const { return tokens() * model.hidden; }  ///< BSh
  /// Returns P_attn = 2·h·d·(n_h + n_kv) of a layer; less where it has no W_V, or no W_K.
  std::uint64_t attention_parameters(const LayerSpec& layer) const {
    return model.hidden * (2 * model.query_width(layer) + layer.kv_matrices() * model.kv_width(layer));
  }
  /// Returns P_mlp of a layer: 3·f·h with a gate, 2·f·h without.
  std::uint64_t mlp_parameters(const LayerSpec& layer) const {
    return model.mlp_matrices() * model.intermediate_of(layer) * model.hidden;
  }
  /// Returns P_L of a layer, without norm gains and biases.
  std::uint64_t block_parameters(const LayerSpec& layer) const { return attention_parameters(layer) + mlp_parameters(layer); }
};

}  // namespace tsprun::detail
