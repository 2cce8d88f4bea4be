// Attention of heads that a rank has, over sequences whose tokens are cut by zigzag over the ranks of an axis. What sequence
// (context) parallelism is about: projections before and after it need no other rank. One file for each way of doing it: K and V
// are gathered (gather), travel round the ring (ring), or heads are exchanged for tokens (ulysses).
//
//   forward:   K, V projected → begin() → Q projected → [exchange()] → forward() → o·W_O
//   backward:  begin() → dO = dY·W_O → backward() → what needs dq alone → finish_backward() → what needs dk and dv
//
// Shapes of this rank's tokens: q, o, d_o, dq [B, S_p, n_q, d]; k, v, dk, dv [B, S_p, n_k, d], after RoPE; lse [B, n_q, S_p].
// q, k, v, o, d_o are in the model's dtype, the others in the type of sums.
#pragma once

#include "core/rank/rank.h"
#include "layers/model/token_layout.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace tsprun {

/// `--sp`.
enum class SequenceExchange : std::uint8_t { gather, ring, ulysses };

/// Heads that every rank of the axis has alike; under tensor parallelism a part of the model's.
struct SequenceHeads {
  std::size_t queries = 1;       ///< n_q
  std::size_t kv = 1;            ///< n_k: exactly those that the query heads read
  kernels::HeadMap map = {};     ///< which K/V head a query head reads
  std::size_t bucket_heads = 0;  ///< gather: K/V heads that are gathered at a time; 0: as it chooses
};

/// Serves all layers of a strategy, one call after another; between forward() and backward() of a layer it keeps nothing.
class SequenceAttention {
 public:
  explicit SequenceAttention(const SequenceHeads& heads) : heads_(heads) {}
  SequenceAttention(const SequenceAttention&) = delete;
  SequenceAttention& operator=(const SequenceAttention&) = delete;
  virtual ~SequenceAttention() = default;

  /// Dropout of probabilities in the calls that follow.
  void drop(const kernels::AttentionDropout& of) { dropout_ = of; }

  /// The form in which attention takes q, k, v and keeps them and lse for the backward pass.
  struct Form {
    std::array<std::size_t, 4> q;
    std::array<std::size_t, 4> kv;
    std::array<std::size_t, 3> lse;
  };
  /// Of gather and ring: that of this rank's tokens. Of ulysses: q [S, B, n_q/D, d], k and v [S, B, read, d], natural order, with
  /// the K/V heads that the n_q/D query heads read; lse [B, n_q/D, S].
  virtual Form form(const TokenLayout& tokens) const;
  /// Whether q, k, v of the tokens go through exchange() before forward() and backward() (ulysses), or are taken as they are.
  virtual bool exchanges() const { return false; }
  /// Brings q, k, v of this rank's tokens into the form. Needed once where the results are kept, else in either direction.
  virtual void exchange(const TokenLayout& tokens, const Tensor& q, const Tensor& k, const Tensor& v, const ConstTensor& tokens_q,
                        const ConstTensor& tokens_k, const ConstTensor& tokens_v);

  /// Optional, before forward() and before backward(): k and v may begin to move. They stay as they are until the other returns.
  virtual void begin(const TokenLayout& tokens, const ConstTensor& k, const ConstTensor& v);
  /// o of this rank's tokens, and lse in the form; q, k, v in the form.
  virtual void forward(const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q, const ConstTensor& k,
                       const ConstTensor& v) = 0;

  /// o and lse for backward(): as forward() left them, or to be made again on the way (recomputation `full`); gather needs no
  /// further bytes for that.
  enum class Outputs : std::uint8_t { kept, made_again };
  /// dq of this rank's tokens; q, k, v, lse in the form. dk and dv of this rank's tokens, summed over the queries of all ranks in
  /// a fixed order, are complete after finish_backward(), until which their memory stays.
  virtual void backward(const TokenLayout& tokens, const Tensor& dq, const Tensor& dk, const Tensor& dv, const ConstTensor& d_o,
                        const Tensor& o, const Tensor& lse, Outputs outputs, const ConstTensor& q, const ConstTensor& k,
                        const ConstTensor& v) = 0;
  virtual void finish_backward() = 0;

 protected:
  const SequenceHeads& heads() const { return heads_; }
  const kernels::AttentionDropout& dropout() const { return dropout_; }

 private:
  SequenceHeads heads_;
  kernels::AttentionDropout dropout_;
};

/// `axis`: the ranks that share a sequence; with one rank all three are the same. Both must outlive the result. Throws
/// Error(refused) if the exchange is ulysses and the axis doesn't divide the query heads.
std::unique_ptr<SequenceAttention> make_sequence_attention(SequenceExchange exchange, Rank& rank, Communicator& axis, DType dtype,
                                                           const SequenceHeads& heads);

}  // namespace tsprun
