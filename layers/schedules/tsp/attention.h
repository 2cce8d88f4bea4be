// TSP attention: every rank keeps its tokens; the ranks broadcast their weight shards one after another, and K and V of the
// shard's heads are gathered along the sequence. The paper's Algorithm 1 and its backward pass (docs/algorithms.md).
//
// The loop over owners r of weight shards is cut into *units* (layers/schedules/tsp/units.h): query heads of one turn r that read
// one gathered *bucket* of K and V (layers/schedules/kv_bucket.h). Its stages run at distances (layers/schedules/look_ahead.h):
// while one unit is computed, Q, K and V of the next are projected and its bucket is gathered, and the weights of the turn after
// that are broadcast.
//
// Where q and k are normed over all heads together (QueryKeyNorm::rows), all turns are projected before the first unit, and W_O
// is broadcast after them, turn by turn; in the backward pass what follows from the gradients of q, k and v comes after the last
// unit, for which the weights of all turns stay. So no byte more moves.
#pragma once

#include "layers/schedules/attention_heads.h"
#include "layers/schedules/bucket_attention.h"
#include "layers/schedules/head_projection.h"
#include "layers/schedules/tsp/axis.h"
#include "layers/schedules/tsp/owner_sums.h"
#include "layers/schedules/tsp/units.h"

#include <array>
#include <functional>
#include <vector>

namespace tsprun::detail {

/// The attention sublayer of TSP in one pass, for all layers, one call after another. `axis`, `own` and what `of` borrows are
/// borrowed. Whoever calls fetches the rank's own pack before begin_forward() or begin_backward(), and tells that it was used.
class TspAttention {
 public:
  TspAttention(const TspAxis& axis, OwnPacks& own, const PassInputs& of);

  /// Sets the dropout of attention probabilities for the following calls.
  void drop(const kernels::AttentionDropout& of) { dropout_ = of; }

  /// Begins to broadcast the weights of the first two turns.
  void begin_forward(std::size_t layer);
  /// Computes y and fills those of q, k, v, o and lse that exist in `saved`. Requires begin_forward(layer). Calls
  /// `before_last_unit` when all K and V of this sublayer have arrived: from then on the weights of the next sublayer can move
  /// without delaying this one.
  void forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved,
               const std::function<void()>& before_last_unit);
  /// Begins to broadcast the weights of the first two turns, and to gather the first bucket if K and V were saved.
  void begin_backward(std::size_t layer, const AttentionSaved& saved);
  /// Computes dx. Requires begin_backward(layer). Gradients of the last turns may still be on their way to their owners until
  /// settle(). Calls `after_first_unit` when the first unit has been computed, which gave the previous sublayer's last messages
  /// time to arrive.
  void backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved,
                const std::function<void()>& after_first_unit);
  /// Returns when all weight gradients have reached their owners.
  void settle() { dW_.settle(); }

 private:
  /// Consecutive parts of one turn's pack: its own rows at the owner, else memory that a broadcast fills.
  struct Weights {
    Tensor rows;
    OwnedTensor memory;
    Work work;
  };
  /// The pack of one turn in two pieces, so that each is freed as soon as it isn't needed.
  struct TurnWeights {
    Weights first;   ///< forward: [W_K; W_V; W_Q], until projected. Backward: [W_K; W_V], until its buckets are finished
    Weights second;  ///< forward: W_Oᵀ. Backward: [W_Q; W_Oᵀ]. Until the turn's last unit
  };
  enum class Direction : bool { forward, backward };
  static std::size_t index(int turn) { return static_cast<std::size_t>(turn); }

  void begin(std::size_t layer, Direction direction);
  void fetch(std::size_t layer, int r, Direction direction);
  void fetch_output(std::size_t layer, int r);
  Weights fetch_parts(std::size_t layer, int r, std::size_t first, std::size_t count);
  std::size_t part_rows(std::size_t layer, int r, std::size_t part) const;
  std::size_t part_number(std::size_t layer, std::size_t part) const;
  /// Rows of W_K and W_V together.
  std::size_t kv_part_rows(std::size_t layer, int r) const { return part_rows(layer, r, kPartK) + part_rows(layer, r, kPartV); }

  bool normed_together(std::size_t layer) const;
  SavedSizes sizes_of_turn(std::size_t layer, int r) const;
  SavedSizes sizes_of_all(std::size_t layer) const;
  AttentionHeads heads_of_turn(std::size_t layer, int r, const AttentionSaved& saved) const;
  void project(std::size_t layer, int r, const ConstTensor& X, const Tensor& W_Q, const Tensor& W_KV,
               const AttentionHeads& turn) const;
  void project_together(std::size_t layer, const ConstTensor& X, const AttentionHeads& all, Direction direction);
  void gather(std::size_t layer, KvBucket& gathered, const TspBucket& bucket, const AttentionHeads& turn) const;
  BucketReaders readers(std::size_t layer, const TspUnit& unit, const AttentionHeads& turn) const;
  HeadRange in_turn(std::size_t layer, const TspUnit& unit) const;
  void make_room_to_lend(std::size_t layer, const AttentionSaved& saved) const;
  void add_lent(const AttentionSaved& saved, std::size_t which, const HeadRange& heads, const Tensor& own) const;
  void lend(const AttentionSaved& saved, std::size_t which, const HeadRange& heads, const Tensor& own) const;
  HeadProjections projections(std::size_t layer) const;
  static HeadRange in_model(const HeadRange& slice, const HeadRange& heads);

  const TspAxis& axis_;
  OwnPacks& own_;
  const PassInputs of_;
  const ByLayer<TspUnits> plans_;
  kernels::AttentionDropout dropout_;
  std::vector<TurnWeights> W_;  // by turn: weights that have arrived or are on their way
  int fetched_ = 0;             // turns of the current sublayer whose broadcast was posted
  KvBucket first_bucket_;       // backward: the first bucket, gathered ahead of its turn
  OwnerSums dW_;
};

}  // namespace tsprun::detail
