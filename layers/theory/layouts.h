// A model on a mesh, rank by rank: which parameters each rank holds, and what it saves for the backward pass.
//
// Weights lie as layers/parameters/place.h says. Saved activations are those of a rank's tokens, but Ulysses saves q, k, v and
// log-sum-exps of some heads over whole sequences.
#pragma once

#include "layers/layout/layout.h"
#include "layers/layout/slice.h"
#include "layers/theory/traffic.h"
#include "tsprun/memory.h"

#include <cstdint>

namespace tsprun::detail::theory {

/// A model with its input, and the layout that it runs on, which must be possible (why_impossible()). `setting.batch` counts the
/// sequences of the whole job; the data axis times the micro-batches must divide it.
struct MeshSetting {
  Setting setting;
  Layout layout = {};

  /// Returns the setting of one replica: the same with the batch divided by the data axis.
  Setting replica() const;
  /// Returns the setting of what a replica computes at a time: one micro-batch.
  Setting micro_batch() const;
};

/// A rank's coordinates on the tensor, the sequence and the data axis, and its stage of a pipeline.
struct MeshPlace {
  int tensor = 0;
  int sequence = 0;
  int data = 0;  ///< among all replicas
  int stage = 0;
};
/// Returns the coordinates of `rank`.
MeshPlace place_of(const Layout& layout, int rank);

/// Returns the rank with these coordinates.
int rank_at(const Layout& layout, MeshPlace place);

/// Parameters that a rank holds, in elements.
struct RankParameters {
  std::uint64_t attention = 0;   ///< attention matrices of all layers
  std::uint64_t mlp = 0;         ///< MLP matrices of all layers
  std::uint64_t vocabulary = 0;  ///< embedding, and output head unless tied
  std::uint64_t norms = 0;       ///< all norm gains, biases and learned positions, and matrices of layers' own inputs
  std::uint64_t inputs = 0;      ///< the table of layers' own inputs
  std::uint64_t states = 0;      ///< of how many of all these it holds the optimizer states
  std::uint64_t total() const { return attention + mlp + vocabulary + norms + inputs; }
};
/// Returns the parameters that the rank at `place` holds.
RankParameters held(const MeshSetting& of, MeshPlace place);

/// Returns how many K/V heads of a layer are read by part `part` of a slice's query heads, which are cut evenly into `parts`.
std::size_t kv_heads_read(const ModelConfig& model, const LayerSpec& layer, const BlockSlice& slice, int part, int parts);

/// Returns the number of tokens in the rank's residual stream, of a micro-batch.
std::uint64_t held_tokens(const MeshSetting& of, MeshPlace place);
/// Returns the bytes that a layer saves for each local token, by recomputation mode: none β(2h + 2a + 2k + 2f) + β_l·n_h (f
/// instead of 2f if the MLP has no gate; a + k more with norms of q and k, k more with one of v, unless there is no W_V),
/// selective β(2h + a) + β_l·n_h, full 2βh; instead of 2h, LayerSpec::kept_residuals() times h. Symbols as in docs/algorithms.md.
std::uint64_t saved_bytes_per_token(const Setting& setting, const LayerSpec& layer);
/// Returns the bytes that a rank saves in a layer for the backward pass of a micro-batch.
std::uint64_t saved_bytes(const MeshSetting& of, const LayerSpec& layer, MeshPlace place);
/// Returns the bytes of activations that a rank saves in a whole step: those of one micro-batch, and under a pipeline those of
/// its layers in as many as are under way on its stage under 1f1b. `id_bytes`: bytes of ids and labels per token.
std::uint64_t activation_bytes(const MeshSetting& of, MeshPlace place, std::uint64_t id_bytes);

/// Returns the bytes that a rank certainly holds in a training step, exactly: parameters, gradients, optimizer states and saved
/// activations; `total` is their sum. `id_bytes` as for activation_bytes().
CategoryBytes certain(const MeshSetting& of, MeshPlace place, std::uint64_t id_bytes);
/// Returns the rank of the first replica that holds most, and so of all; the first if several do. Of what comes and goes in a
/// layer it looks at the keys that windows show.
int fullest(const MeshSetting& of);

}  // namespace tsprun::detail::theory
