// Attention over sequences whose tokens are cut by zigzag over the ranks of an axis (sequence or context parallelism). Only
// attention itself needs other ranks; the projections before and after it don't. There are three exchanges, one file each: K and
// V are gathered (gather), K and V travel round a ring (ring), or an all_to_all exchanges heads for tokens (ulysses).
//
//   forward:   K, V projected → begin() → Q projected → [exchange()] → forward() → o·W_O
//   backward:  begin() → dO = dY·W_O → backward( what needs dq alone ) → what needs dk and dv
//
// Shapes of this rank's tokens: q, o, d_o, dq [B, S_p, n_q, d]; k, v, dk, dv [B, S_p, n_k, d], after RoPE; lse [B, n_q, S_p]. q,
// k, v, o, d_o are in the model's dtype, the others in the type of sums.
#pragma once

#include "core/rank/rank.h"
#include "layers/layout/axes.h"
#include "layers/layout/token_layout.h"
#include "layers/schedules/attention_heads.h"
#include "layers/schedules/kv_bucket.h"
#include "layers/schedules/ring.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace tsprun::detail {

/// The heads of a layer that all ranks of the axis compute; under tensor parallelism a part of the model's.
struct SequenceHeads {
  std::size_t queries = 1;       ///< n_q
  std::size_t kv = 1;            ///< n_k: exactly the K/V heads that the query heads read
  std::size_t head_dim = 1;      ///< d
  kernels::HeadMap map = {};     ///< says which K/V head a query head reads
  double scale = 1;              ///< of scores
  std::size_t bucket_heads = 0;  ///< gather only: K/V heads gathered at a time; 0: chosen
};

/// The ranks that share sequences, this rank, and the model's dtype and its type of sums.
struct SequenceAxis {
  Rank& rank;
  Communicator& group;
  DType dtype;
  DType sums;

  int D() const { return group.size(); }
  int p() const { return group.rank(); }
  ComputeStream& compute() const { return rank.compute(); }
};

/// K and V of a rank's tokens on their way round the ring, packed as [S_r, 2·B·n_k·d].
struct TravellingKv {
  OwnedTensor own;  ///< this rank's; none on one rank
  RingShards packs;
};

/// State that one pass keeps between the calls of its attention: the documents of its sequences, the dropout of attention
/// probabilities, and what begin() began to move until forward() or backward() takes it. The caller saves q, k, v, o and lse.
struct SequencePass {
  kernels::Documents documents = {};
  kernels::AttentionDropout dropout = {};
  KvBucket first_bucket = {};                   ///< gather
  std::optional<TravellingKv> travelling = {};  ///< ring
};

/// Computes attention for all layers of equal sizes and all passes of a strategy, one call after another. It keeps nothing
/// itself: what a pass keeps is in its SequencePass.
class SequenceAttention {
 public:
  SequenceAttention(const SequenceAxis& axis, const SequenceHeads& heads) : axis_(axis), heads_(heads) {}
  SequenceAttention(const SequenceAttention&) = delete;
  SequenceAttention& operator=(const SequenceAttention&) = delete;
  virtual ~SequenceAttention() = default;

  /// Returns the shapes in which attention takes q, k and v, and keeps them and lse for the backward pass, and that of o; `gate`
  /// is unset. For gather and ring they are those of this rank's tokens. For ulysses: q [S, B, n_q/D, d]; k and v [S, B, read, d]
  /// with the K/V heads that the n_q/D query heads read; lse [B, n_q/D, S]; all in natural order.
  virtual SavedSizes sizes(const TokenLayout& tokens) const { return own_sizes(tokens); }
  /// Returns the shapes of this rank's tokens.
  SavedSizes own_sizes(const TokenLayout& tokens) const {
    return SavedSizes::of(tokens, heads_.queries, heads_.kv, heads_.head_dim, 0);
  }
  /// Returns whether q, k and v of the tokens must go through exchange() before forward() and backward() (ulysses), or are taken
  /// as they are.
  virtual bool exchanges() const { return false; }
  /// Exchanges tokens_q, tokens_k and tokens_v of this rank's tokens for q, k and v in the shapes of sizes(). Needed once if the
  /// caller keeps the results, else before forward() and again before backward().
  virtual void exchange(const TokenLayout& tokens, const AttentionHeads& of, const ConstTensor& tokens_q,
                        const ConstTensor& tokens_k, const ConstTensor& tokens_v);
  /// Exchanges q alone, where k and v are another layer's, which were exchanged for it.
  virtual void exchange_queries(const TokenLayout& tokens, const AttentionHeads& of, const ConstTensor& tokens_q);

  /// Begins to move k and v of a layer with this window, 0: none; calling it before forward() or backward() is optional. k and v
  /// must not change until that call returns.
  virtual void begin(SequencePass& /*pass*/, const TokenLayout& /*tokens*/, std::size_t /*window*/, const ConstTensor& /*k*/,
                     const ConstTensor& /*v*/) {}
  /// Computes o of this rank's tokens, and lse in the shape of sizes(), from q, k and v in the shapes of sizes().
  virtual void forward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of) = 0;

  /// State of o and lse when backward() is called: as forward() left them, or to be computed again on the way (recomputation
  /// `full`). Computing them again moves no further bytes with gather.
  enum class Outputs : std::uint8_t { kept, made_again };
  /// Gradients of this rank's tokens.
  struct Gradients {
    ConstTensor d_o;
    Tensor dq, dk, dv;
    /// Only where exchanges(): what layers that take this one's k and v have found of the gradients of these, in the shapes of
    /// sizes() and the type of sums; no dims: nothing. If dk and dv have no dims, k and v are another layer's, and theirs are
    /// added here instead.
    std::array<Tensor, 2> with_heads = {};
  };
  /// Computes dq, dk and dv from d_o and `of`, whose tensors have the shapes of sizes(). dk and dv are summed over the queries of
  /// all ranks in canonical order. Calls `queries_done` when dq is complete and d_o isn't needed any more, while dk and dv may
  /// still be on their way.
  virtual void backward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of, const Gradients& gradients,
                        Outputs outputs, const std::function<void()>& queries_done) = 0;

 protected:
  OwnedTensor step(DType dtype, std::initializer_list<std::size_t> sizes, std::string_view what) const {
    return axis_.rank.tensor(Category::workspace, dtype, sizes, what);
  }
  /// Returns a pass's dropout of these of the axis's query heads.
  kernels::AttentionDropout dropout(const SequencePass& pass, std::size_t first_query, const kernels::Positions& queries = {},
                                    const kernels::Positions& keys = {}) const {
    return pass.dropout.of(heads_.map.first_query + first_query, queries, keys);
  }

  const SequenceAxis axis_;
  const SequenceHeads heads_;
};

/// Returns the attention of an exchange. `axis` holds the ranks that share a sequence; on one rank all three exchanges are the
/// same. `rank` and `axis` are borrowed and must outlive the result. Throws Error(refused) if the exchange is ulysses and the
/// axis doesn't divide the query heads.
std::unique_ptr<SequenceAttention> make_sequence_attention(SequenceExchange exchange, Rank& rank, Communicator& axis, DType dtype,
                                                           const SequenceHeads& heads);

/// Factories of the three exchanges, for make_sequence_attention(), which checks their arguments.
std::unique_ptr<SequenceAttention> make_gather_attention(const SequenceAxis& axis, const SequenceHeads& heads);
std::unique_ptr<SequenceAttention> make_ring_attention(const SequenceAxis& axis, const SequenceHeads& heads);
std::unique_ptr<SequenceAttention> make_ulysses_attention(const SequenceAxis& axis, const SequenceHeads& heads);

}  // namespace tsprun::detail
