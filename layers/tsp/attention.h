// TSP attention: every rank keeps its tokens; weight shards are broadcast one after another, and K and V of the shard's heads are
// gathered along the sequence. The paper's Algorithm 1, and its backward pass (docs/algorithms.md).
//
// The loop over owners of weights r is cut into *units* (layers/tsp/units.h): query heads of one turn r that read one gathered
// *bucket* of K and V (layers/kv_bucket.h). Its stages run at distances (layers/look_ahead.h): while a unit is computed, the next
// one's Q, K, V are projected and its bucket is being gathered, and the weights of the turn after that are on their way.
#pragma once

#include "layers/biases.h"
#include "layers/kv_bucket.h"
#include "layers/tsp/axis.h"
#include "layers/tsp/owner_sums.h"
#include "layers/tsp/units.h"

#include <functional>
#include <vector>

namespace tsprun {

class TspAttention {
 public:
  explicit TspAttention(TspAxis& axis);

  PackPlan pack(std::size_t layer) const;

  /// Begins to move the weights of the first turns.
  void begin_forward(std::size_t layer);
  /// Computes y; fills q, k, v, o, lse of `saved` where it has room for them. Call begin_forward(layer) first. Calls
  /// `before_last_unit` when all gathered K and V are here: from then on the next sublayer's weights may move without being in
  /// anybody's way.
  void forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved,
               const std::function<void()>& before_last_unit);
  /// Begins to move the weights of the first turns, and to gather the first bucket if K and V were kept.
  void begin_backward(std::size_t layer, const AttentionSaved& saved);
  /// Computes dx. Call begin_backward(layer) first. Gradients of the last turns may still be on their way until settle(). Calls
  /// `after_first_unit` when something was computed under which the previous sublayer's last messages could arrive.
  void backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x, const AttentionSaved& saved,
                const std::function<void()>& after_first_unit);
  /// Returns when all gradients have reached their owners.
  void settle() { dW_.settle(); }

 private:
  /// Neighbouring parts of a turn's pack: the store's own rows, or a copy that is on its way.
  struct Weights {
    Tensor rows;
    OwnedTensor memory;
    Work work;
  };
  /// The pack of one turn in two pieces, so that each is given back as soon as it isn't needed.
  struct TurnWeights {
    Weights first;   ///< forward: [W_K; W_V; W_Q], until projected. Backward: [W_K; W_V], until its buckets are finished
    Weights second;  ///< forward: W_Oᵀ. Backward: [W_Q; W_Oᵀ]. Until the turn's last unit
  };
  /// q, k, v, o, lse of one turn's heads: views of what is saved, or memory of the turn's own.
  struct Heads {
    OwnedTensor q_memory, k_memory, v_memory, o_memory, lse_memory;
    Tensor q, k, v, o;  ///< [B, S_p, heads, d]
    Tensor lse;         ///< [B, heads, S_p]

    void drop_keys();
  };
  enum class Direction : bool { forward, backward };

  void begin(std::size_t layer, Direction direction);
  void fetch(std::size_t layer, int r, Direction direction);
  Weights fetch_parts(std::size_t layer, int r, std::size_t first, std::size_t count);
  std::size_t part_rows(int r, std::size_t part) const;

  Heads heads_of_turn(int r, const AttentionSaved& saved) const;
  void project(std::size_t layer, int r, const ConstTensor& X, const Tensor& W_Q, const Tensor& W_KV, const Heads& turn) const;
  void gather(KvBucket& gathered, const TspBucket& bucket, const Heads& turn) const;
  kernels::Attention attention(const TspUnit& unit, const LocalChunk& chunk) const;
  void flash_forward(const TspUnit& unit, const KvBucket& gathered, const Heads& turn) const;
  void flash_backward(const TspUnit& unit, const KvBucket& gathered, const Heads& turn, const Tensor& dq, const Tensor& dO) const;
  Bias of_heads(const Bias& bias, const HeadRange& slice, const HeadRange& heads) const;

  TspAxis& axis_;
  std::size_t planned_heads_ = 0;
  TspUnits plan_;
  std::vector<TurnWeights> W_;  // by turn: those that are here or on their way
  int fetched_ = 0;             // turns of the present sublayer whose weights were asked for
  KvBucket first_bucket_;       // backward: begun before its turn
  OwnerSums dW_;
};

}  // namespace tsprun
