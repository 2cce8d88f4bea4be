// TSP gated MLP: weight shards travel round a ring while every rank keeps its tokens. The paper's Algorithm 2 and its backward
// pass (docs/algorithms.md, "TSP gated MLP").
//
// A shard is the pack [W1; W3; W2ᵀ] of f_r rows each and width h ([W1; W2ᵀ] without a gate), sent as one message. Step t computes
// with shard (p − t) mod D while that shard goes on to rank p + 1 and the next one arrives from rank p − 1
// (layers/schedules/ring.h).
#pragma once

#include "layers/schedules/mlp_columns.h"
#include "layers/schedules/ring.h"
#include "layers/schedules/tsp/axis.h"

#include <functional>
#include <optional>

namespace tsprun::detail {

/// The MLP sublayer of TSP in one pass, for all layers, one call after another. `axis`, `own` and what `of` borrows are borrowed.
/// Whoever calls fetches the rank's own pack before begin_forward() or backward(), and tells that it was used.
class TspMlp {
 public:
  TspMlp(const TspAxis& axis, OwnPacks& own, const PassInputs& of) : axis_(axis), own_packs_(own), of_(of) {}

  /// Begins to send this rank's shard round the ring.
  void begin_forward(std::size_t layer);
  /// Computes y = (σ(x·W1ᵀ) ∘ (x·W3ᵀ))·W2ᵀ and fills those of gate and up that exist in `saved`. Requires begin_forward(layer).
  /// Calls `last_step` when the last shard has arrived and no other travelling shard is in memory: from then on the weights of
  /// the next sublayer can move.
  void forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved, const std::function<void()>& last_step);
  /// Callbacks of backward(): `last_step` as in forward(); `first_step_done` when the first shard has been computed with.
  struct Moments {
    std::function<void()> last_step;
    std::function<void()> first_step_done;
  };
  /// Computes dx and the gradients of this rank's shard. The sum of those gradients may still be on its way until settle().
  void backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved, const Moments& moments);
  /// Returns when the gradients of this rank's shard are complete in the store.
  void settle() {
    sums_.settle();
    own_.add();
  }

 private:
  std::size_t shard_rows(std::size_t layer, int r) const {
    return axis_.config.mlp_matrices() * axis_.of(layer).mlp_rows.count(r);
  }
  std::size_t steps() const { return static_cast<std::size_t>(axis_.D()); }
  int owner(std::size_t step) const { return shard_at(axis_.group, step); }
  RingShards weights(std::size_t layer) const;
  MlpColumns columns(std::size_t layer, const ConstTensor& X, int shard, const MlpSaved& saved) const;
  Bias bias(std::size_t layer, int shard) const;

  void begin_sums(std::size_t layer);

  const TspAxis& axis_;
  OwnPacks& own_packs_;
  const PassInputs of_;
  std::optional<RingShards> begun_;  // forward: shards that began to travel during the sublayer before
  MicroBatchGradient own_;           // backward: where the sum of this rank's shard arrives
  RingSums sums_;
};

}  // namespace tsprun::detail
