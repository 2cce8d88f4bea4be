// Attention over sequences whose tokens are cut by zigzag over the ranks of an axis (sequence or context parallelism). Only
// attention itself needs other ranks; the projections before and after it don't. There are three exchanges, one file each: K and
// V are gathered (gather), K and V travel round a ring (ring), or an all_to_all exchanges heads for tokens (ulysses).
//
//   forward:   K, V projected → begin() → Q projected → [exchange()] → forward() → o·W_O
//   backward:  begin() → dO = dY·W_O → backward() → what needs dq alone → finish_backward() → what needs dk and dv
//
// Shapes of this rank's tokens: q, o, d_o, dq [B, S_p, n_q, d]; k, v, dk, dv [B, S_p, n_k, d], after RoPE; lse [B, n_q, S_p]. q,
// k, v, o, d_o are in the model's dtype, the others in the type of sums.
#pragma once

#include "core/rank/rank.h"
#include "layers/layout/axes.h"
#include "layers/layout/token_layout.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace tsprun::detail {

/// The heads that all ranks of the axis compute; under tensor parallelism a part of the model's.
struct SequenceHeads {
  std::size_t queries = 1;       ///< n_q
  std::size_t kv = 1;            ///< n_k: exactly the K/V heads that the query heads read
  kernels::HeadMap map = {};     ///< says which K/V head a query head reads
  std::size_t bucket_heads = 0;  ///< gather only: K/V heads gathered at a time; 0: chosen
};

/// Computes attention for all layers of a strategy, one call after another. It keeps nothing between forward() and backward() of
/// a layer: the caller saves q, k, v, o and lse.
class SequenceAttention {
 public:
  explicit SequenceAttention(const SequenceHeads& heads) : heads_(heads) {}
  SequenceAttention(const SequenceAttention&) = delete;
  SequenceAttention& operator=(const SequenceAttention&) = delete;
  virtual ~SequenceAttention() = default;

  /// Sets the dropout of attention probabilities for the following calls.
  void drop(const kernels::AttentionDropout& of) { dropout_ = of; }

  /// Shapes in which attention takes q, k and v, and keeps them and lse for the backward pass.
  struct Form {
    std::array<std::size_t, 4> q;
    std::array<std::size_t, 4> kv;
    std::array<std::size_t, 3> lse;
  };
  /// Returns these shapes. For gather and ring they are those of this rank's tokens. For ulysses: q [S, B, n_q/D, d]; k and v [S,
  /// B, read, d] with the K/V heads that the n_q/D query heads read; lse [B, n_q/D, S]; all in natural order.
  virtual Form form(const TokenLayout& tokens) const;
  /// Returns whether q, k and v of the tokens must go through exchange() before forward() and backward() (ulysses), or are taken
  /// as they are.
  virtual bool exchanges() const { return false; }
  /// Exchanges tokens_q, tokens_k and tokens_v of this rank's tokens for q, k and v in the shapes of form(). Needed once if the
  /// caller keeps the results, else before forward() and again before backward().
  virtual void exchange(const TokenLayout& tokens, const Tensor& q, const Tensor& k, const Tensor& v, const ConstTensor& tokens_q,
                        const ConstTensor& tokens_k, const ConstTensor& tokens_v);

  /// Begins to move k and v; calling it before forward() or backward() is optional. k and v must not change until that call
  /// returns.
  virtual void begin(const TokenLayout& tokens, const ConstTensor& k, const ConstTensor& v);
  /// Computes o of this rank's tokens, and lse in the shape of form(), from q, k and v in the shapes of form().
  virtual void forward(const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q, const ConstTensor& k,
                       const ConstTensor& v) = 0;

  /// State of o and lse when backward() is called: as forward() left them, or to be computed again on the way (recomputation
  /// `full`). Computing them again moves no further bytes with gather.
  enum class Outputs : std::uint8_t { kept, made_again };
  /// Computes dq of this rank's tokens from q, k, v and lse in the shapes of form(). dk and dv of this rank's tokens, summed over
  /// the queries of all ranks in canonical order, are complete after finish_backward(); their memory must stay until then.
  virtual void backward(const TokenLayout& tokens, const Tensor& dq, const Tensor& dk, const Tensor& dv, const ConstTensor& d_o,
                        const Tensor& o, const Tensor& lse, Outputs outputs, const ConstTensor& q, const ConstTensor& k,
                        const ConstTensor& v) = 0;
  /// Returns when dk and dv of the last backward() are complete.
  virtual void finish_backward() = 0;

 protected:
  const SequenceHeads& heads() const { return heads_; }
  const kernels::AttentionDropout& dropout() const { return dropout_; }

 private:
  SequenceHeads heads_;
  kernels::AttentionDropout dropout_;
};

/// Returns the attention of an exchange. `axis` holds the ranks that share a sequence; on one rank all three exchanges are the
/// same. `rank` and `axis` are borrowed and must outlive the result. Throws Error(refused) if the exchange is ulysses and the
/// axis doesn't divide the query heads.
std::unique_ptr<SequenceAttention> make_sequence_attention(SequenceExchange exchange, Rank& rank, Communicator& axis, DType dtype,
                                                           const SequenceHeads& heads);

}  // namespace tsprun::detail
