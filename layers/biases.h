// Biases of a block's first linear layers: those of W_Q, W_K, W_V and of W_1 (GPT-2's kind has them). The sublayers' last biases
// are added once, to their results: layers/model/block.h.
//
// Every rank has all of them, whatever it has of the matrices: page 3 counts biases with norm gains, as `other`. A rank adds to
// the gradients of what it computes, of its tokens; the model sums them over all ranks that share a sequence or slice heads and
// rows. They are the store's last pack, of width 1: one part for W_Q, W_K, W_V of a layer together, one for W_1.
#pragma once

#include "core/rank/compute_stream.h"
#include "layers/model/config.h"
#include "layers/model/parameter_store.h"

#include <cstddef>

namespace tsprun {

inline constexpr std::size_t kBiasesOfLayer = 2;
inline std::size_t bias_pack_number(const ParameterStore& store) { return store.packs() - 1; }

/// A vector [n] and where its gradient is added up (no dims without training). No dims: there is none.
struct Bias {
  Tensor values;
  Tensor gradient;

  bool exists() const { return values.dims() > 0; }
  Bias slice(std::size_t first, std::size_t count) const {
    if (!exists()) return {};
    return {values.slice(0, first, count), gradient.dims() == 0 ? Tensor() : gradient.slice(0, first, count)};
  }
  /// x += the bias in every row of x [rows, n].
  void add_to(ComputeStream& compute, const Tensor& x) const {
    if (exists()) compute.add_bias(x, values);
  }
  /// gradient += the sum of dy's rows.
  void add_gradient(ComputeStream& compute, const ConstTensor& dy) const {
    if (exists()) compute.bias_backward(gradient, dy);
  }
};

/// Those of one layer, of all heads and rows of the model.
struct BlockBiases {
  Bias query;
  Bias key;
  Bias value;
  Bias mlp;

  BlockBiases(const ParameterStore& store, const ModelConfig& config, std::size_t layer) {
    if (!config.has_biases()) return;
    const auto part = [&](std::size_t which) {
      const std::size_t pack = bias_pack_number(store);
      const auto vector = [](const Tensor& column) { return column.reshaped({column.size(0)}); };
      return Bias{vector(store.values(pack, kBiasesOfLayer * layer + which, 1)),
                  store.training() ? vector(store.gradients(pack, kBiasesOfLayer * layer + which, 1)) : Tensor()};
    };
    const Bias projections = part(0);
    query = projections.slice(0, config.query_width());
    key = projections.slice(config.query_width(), config.kv_width());
    value = projections.slice(config.query_width() + config.kv_width(), config.kv_width());
    mlp = part(1);
  }
};

}  // namespace tsprun
