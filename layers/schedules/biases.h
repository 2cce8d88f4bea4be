// Biases of a block's first linear layers, W_Q, W_K, W_V and W_1, and gains of the norms of q and k, in models that have them.
// The last biases of the sublayers are added once, to their results: layers/model/block.h.
//
// Every rank has all of these vectors, whichever part of the matrices it has; docs/algorithms.md counts them, like norm gains, as
// `other`. A rank adds to the gradients of the heads and rows that it computes, for its own tokens; the model then sums the
// gradients over all ranks that share a sequence or slice heads and rows. They are the store's last pack, of width 1: for each
// layer, as it has them, those of W_Q, W_K and W_V, as parts of their own or as one, the gains of q and of k, that of W_1, and
// the scale of the layer's output, whose gradient stays 0.
#pragma once

#include "core/rank/compute_stream.h"
#include "layers/io/config.h"
#include "layers/parameters/parameter_store.h"

#include <cstddef>
#include <utility>

namespace tsprun::detail {

/// Returns the number of the bias pack. Precondition: the model has such biases.
inline std::size_t bias_pack_number(const ParameterStore& store) { return store.packs() - 1; }

/// A vector [n] and the tensor to which its gradient is added (no dims without training). A Bias without dims stands for no bias,
/// and every operation on it does nothing.
struct Bias {
  Tensor values;
  Tensor gradient;

  bool exists() const { return values.dims() > 0; }
  /// Returns elements [first, first + count).
  Bias slice(std::size_t first, std::size_t count) const {
    if (!exists()) return {};
    return {values.slice(0, first, count), gradient.dims() == 0 ? Tensor() : gradient.slice(0, first, count)};
  }
  /// Adds the bias to every row of x [rows, n].
  void add_to(ComputeStream& compute, const Tensor& x) const {
    if (exists()) compute.add_bias(x, values);
  }
  /// Adds the sum of the rows of dy [rows, n] to the gradient.
  void add_gradient(ComputeStream& compute, const ConstTensor& dy) const {
    if (exists()) compute.bias_backward(gradient, dy);
  }
};

/// Biases of one layer, with all heads and rows of the model; without dims where the layer has none.
struct BlockBiases {
  Bias query;
  Bias key;
  Bias value;
  Bias query_norm;  ///< gains of the norms of heads, or of all heads together
  Bias key_norm;
  Bias mlp;

  BlockBiases(const ParameterStore& store, const ModelConfig& config, std::size_t layer) {
    const LayerSpec& spec = config.layer(layer);
    const Biases& biases = spec.biases;
    const bool in_one = !config.type->weight(ParameterRole::query_key_value_bias).empty();
    const auto projections_of = [&](const LayerSpec& of) -> std::size_t {
      return in_one && of.biases.projections() > 0 ? 1 : of.biases.projections();
    };
    const auto norms_of = [](const LayerSpec& of) -> std::size_t {
      return of.norms_queries_and_keys() ? (of.projects_keys() ? 2 : 1) : 0;
    };
    const std::size_t of_projections = projections_of(spec);
    const std::size_t norms = norms_of(spec);
    const std::size_t first = config.specs.sum(0, layer, [&](const LayerSpec& of) {
      return projections_of(of) + norms_of(of) + (of.biases.up ? 1U : 0U) + (of.scales_output ? 1U : 0U);
    });
    const auto parts = [&](std::size_t from, std::size_t count) {
      const std::size_t pack = bias_pack_number(store);
      const auto vector = [](const Tensor& column) { return column.reshaped({column.size(0)}); };
      return Bias{vector(store.values(pack, from, count)),
                  store.training() ? vector(store.gradients(pack, from, count)) : Tensor()};
    };
    if (biases.up) mlp = parts(first + of_projections + norms, 1);
    if (norms > 0) {
      query_norm = parts(first + of_projections, 1);
      if (spec.projects_keys()) key_norm = parts(first + of_projections + 1, 1);
    }
    if (of_projections == 0) return;
    // One behind the other in memory, whether files have them in one vector or apart.
    const Bias projections = parts(first, of_projections);
    std::size_t taken = 0;
    const auto take = [&](bool exists, std::size_t count) {
      return exists ? projections.slice(std::exchange(taken, taken + count), count) : Bias();
    };
    query = take(biases.query, config.query_width(spec));
    key = take(biases.key, config.kv_width(spec));
    value = take(biases.value, config.kv_width(spec));
  }
};

}  // namespace tsprun::detail
