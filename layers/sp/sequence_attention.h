// Attention of heads that a rank has, over sequences whose tokens are cut by zigzag over the ranks of an axis. What sequence
// (context) parallelism is about: projections before and after it need no other rank. One file for each way of doing it: K and V
// are gathered (gather), travel round the ring (ring), or heads are exchanged for tokens (ulysses).
//
// Shapes: q, o, d_o, dq [B, S_p, n_q, d]; k, v, dk, dv [B, S_p, n_k, d], after RoPE; lse [B, n_q, S_p]. q, k, v, o are in the
// model's dtype, the others in the type of sums. Query head i reads K/V head ⌊i·n_k/n_q⌋.
#pragma once

#include "core/rank/rank.h"
#include "layers/model/token_layout.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tsp {

/// `--sp`.
enum class SequenceExchange : std::uint8_t { gather, ring, ulysses };

/// What attention of one layer keeps from its forward to its backward pass, beside q, k, v, o, lse. Empty but for exchanges that
/// keep something in another form.
class SequenceAttention {
 public:
  SequenceAttention() = default;
  SequenceAttention(const SequenceAttention&) = delete;
  SequenceAttention& operator=(const SequenceAttention&) = delete;
  virtual ~SequenceAttention() = default;

  /// o and lse of this rank's tokens. `tokens` are those of the pass.
  virtual void forward(const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q, const ConstTensor& k,
                       const ConstTensor& v) = 0;
  /// dq of this rank's queries; dk and dv of this rank's keys, summed over the queries of all ranks in canonical order.
  virtual void backward(const TokenLayout& tokens, const Tensor& dq, const Tensor& dk, const Tensor& dv, const ConstTensor& d_o,
                        const ConstTensor& o, const ConstTensor& lse, const ConstTensor& q, const ConstTensor& k,
                        const ConstTensor& v) = 0;
};

/// `axis`: the ranks that share a sequence; with one rank all three are the same. Both must outlive the result.
std::unique_ptr<SequenceAttention> make_sequence_attention(SequenceExchange exchange, Rank& rank, Communicator& axis,
                                                           DType dtype);

}  // namespace tsp
