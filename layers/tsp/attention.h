// TSP attention: every rank keeps its tokens; weight shards are broadcast one after another, K and V of the shard's heads are
// gathered along the sequence. The paper's Algorithm 1; page "TSP attention".
//
// Turns, units and buckets: layers/tsp/units.h. The pipeline prepares unit u + 1 (project, rotate, begin to gather) before it
// computes unit u.
//
// Gathered buckets: layers/kv_bucket.h.
#pragma once

#include "layers/biases.h"
#include "layers/kv_bucket.h"
#include "layers/tsp/axis.h"
#include "layers/tsp/units.h"

#include <array>
#include <deque>
#include <functional>
#include <vector>

namespace tsp {

class TspAttention {
 public:
  explicit TspAttention(TspAxis& axis);

  PackPlan pack(std::size_t layer) const;

  /// Weights of the first turns begin to move.
  void begin_forward(std::size_t layer) { begin(layer, false); }
  /// After begin_forward(layer). y, and q, k, v, o, lse where `saved` has room for them. `last_unit` is called when all
  /// gathered K and V are here, so that the next sublayer's weights may begin to move and are in nobody's way.
  void forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved,
               const std::function<void()>& last_unit);
  /// Also the first K/V bucket, if K and V were kept.
  void begin_backward(std::size_t layer, const AttentionSaved& saved);
  /// After begin_backward(layer). dx; the gradients of the last turns may still be on their way until settle().
  /// `after_first_unit` is called when something was computed under which the previous sublayer's last messages could arrive.
  void backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x, const AttentionSaved& saved,
                const std::function<void()>& after_first_unit);
  /// Returns when all gradients have reached their owners.
  void settle();

 private:
  /// Neighbouring parts of a pack: the store's own rows, or a copy that is on its way.
  struct Weights {
    Tensor rows;
    OwnedTensor memory;
    Work work;
  };
  /// What one turn holds.
  struct Turn {
    Weights W_KVQ;  // forward: [W_K; W_V; W_Q], until projected. Backward: [W_K; W_V], until its buckets are finished
    Weights W_O;    // forward: W_Oᵀ. Backward: [W_Q; W_Oᵀ]. Until the turn's last unit
    OwnedTensor q_memory, k_memory, v_memory, o_memory, lse_memory;  // of what isn't saved
    Tensor q, k, v, o;                                               // [B, S_p, heads, d] of the turn's heads
    Tensor lse;                                                      // [B, heads, S_p]
    OwnedTensor dO;                                                  // [B, S_p, heads, d]
    OwnedTensor dq;                                                  // the same, in the type of sums
    std::size_t unfinished = 0;                                      // backward: buckets that its K/V weights wait for
    OwnedTensor dW_KV_memory;                                        // [dW_K; dW_V]
    Tensor dW_KV;
  };
  struct Pass;

  void begin(std::size_t layer, bool backward);
  void fetch(Turn& turn, std::size_t layer, int r, bool backward);
  Weights fetch_parts(std::size_t layer, int r, std::size_t first, std::size_t count);
  std::size_t part_rows(int r, std::size_t part) const;

  void prepare(Pass& pass, const TspUnit& unit);
  Bias of_heads(const Bias& bias, const HeadRange& slice, const HeadRange& heads) const;
  void project(Pass& pass, Turn& turn, int r);
  kernels::Attention attention(const TspUnit& unit, const LocalChunk& chunk) const;
  void flash_forward(Pass& pass, const TspUnit& unit);
  void compute_forward(Pass& pass, const TspUnit& unit);
  void compute_backward(Pass& pass, const TspUnit& unit);
  void end_turn_backward(Pass& pass, const TspUnit& unit);
  void finish_bucket(Pass& pass, std::size_t bucket);
  void send_home(OwnedTensor memory, const Tensor& gradient, int owner);
  Tensor gradient_shard(std::size_t layer, int r, std::size_t first, std::size_t count, OwnedTensor& memory);

  TspAxis& axis_;
  std::size_t planned_heads_ = 0;
  TspUnits plan_;
  std::vector<Turn> turns_;
  KvBucket first_bucket_;            // backward: begun before its turn
  int fetched_ = 0;                  // turns of the present sublayer whose weights were asked for
  std::deque<Transfer> going_home_;  // gradient shards on their way to their owners
};

}  // namespace tsp
