// TSP gated MLP: weight shards travel round the ring while every rank keeps its tokens. The paper's Algorithm 2; page "TSP gated
// MLP".
//
// A shard is the pack [W1; W3; W2ᵀ] of f_r rows each, width h ([W1; W2ᵀ] without a gate): one message. Step t works with shard (p
// − t) mod D, while the shard goes on to p + 1 and the next arrives from p − 1 (layers/ring.h).
#pragma once

#include "layers/mlp_columns.h"
#include "layers/ring.h"
#include "layers/tsp/axis.h"

#include <functional>
#include <optional>

namespace tsprun {

class TspMlp {
 public:
  explicit TspMlp(TspAxis& axis) : axis_(axis) {}

  PackPlan pack(std::size_t layer) const;

  /// The first shard begins to go round.
  void begin_forward(std::size_t layer);
  /// After begin_forward(layer). y = (σ(x·W1ᵀ) ∘ (x·W3ᵀ))·W2ᵀ, and gate and up where `saved` has room for them. `last_step` is
  /// called when the last shard is here and its memory the only one in use: the next sublayer's weights may begin to move.
  void forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved, const std::function<void()>& last_step);
  /// Called by backward(): when the last shard is here, as in forward(); and when the first was worked with.
  struct Moments {
    std::function<void()> last_step;
    std::function<void()> first_step_done;
  };
  /// dx, and this rank's gradients in the store; the own shard's sum may still be on its way home until settle().
  void backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x, const MlpSaved& saved,
                const Moments& moments);
  void settle() { sums_.settle(); }

 private:
  std::size_t shard_rows(int r) const { return axis_.config.mlp_matrices() * axis_.mlp_rows.count(r); }
  RingWeights weights(std::size_t layer);
  MlpColumns columns(const ConstTensor& X, int shard, const MlpSaved& saved) const;
  Bias bias(std::size_t layer, int shard) const;

  TspAxis& axis_;
  std::optional<RingWeights> ring_;  // forward
  RingSums sums_;
};

}  // namespace tsprun
