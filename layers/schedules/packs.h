// The packs of the blocks in a store (layers/parameters/place.h): their numbers, and the matrices that they consist of.
#pragma once

#include "layers/io/config.h"
#include "layers/layout/heads.h"
#include "layers/parameters/parameter_store.h"
#include "layers/schedules/tasks.h"

#include <cstddef>

namespace tsprun::detail {

/// Views of the matrices of an MLP pack, or of its gradients. W3 has no dims if the MLP has no gate.
struct MlpMatrices {
  Tensor W1, W3, W2t;
  MlpMatrices(const Tensor& rows, const ModelConfig& config) {
    const std::size_t f = rows.size(0) / config.mlp_matrices();
    W1 = rows.slice(0, 0, f);
    if (config.gated_mlp()) W3 = rows.slice(0, f, f);
    W2t = rows.slice(0, (config.mlp_matrices() - 1) * f, f);
  }
};

/// Views [B, S_p, heads, d] as the matrix [B·S_p, heads·d].
template <class View>
View matrix_of(const View& heads) {
  return heads.merged(2).merged(0);
}

/// Numbers of the blocks' packs in the store, which come first: attention and MLP of layer 0, of layer 1, …
constexpr std::size_t attention_pack_number(std::size_t layer) { return 2 * layer; }
constexpr std::size_t mlp_pack_number(std::size_t layer) { return 2 * layer + 1; }
constexpr std::size_t pack_number(const Visit& visit) {
  return visit.sublayer == Sublayer::attention ? attention_pack_number(visit.layer) : mlp_pack_number(visit.layer);
}
constexpr std::size_t layer_of(std::size_t pack) { return pack / 2; }
constexpr bool is_attention_pack(std::size_t pack) { return pack % 2 == 0; }

}  // namespace tsprun::detail
