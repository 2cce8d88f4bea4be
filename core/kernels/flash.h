// Flash attention: softmax(scale·Q·Kᵀ + mask)·V and its gradients, tile by tile, so that memory never grows with queries × keys.
//
// Shapes: q, o, dq [B, Sq, n, d]; k, v, dk, dv [B, Sk, n_kv, d]; lse, delta [B, n, Sq]. The last dim of the former is dense, all
// other strides are free, so heads, chunks and batches can be slices of larger tensors. q, k, v have one dtype (bf16, f32 or
// f64); lse, delta and the gradients have the type of sums: f32, or f64 in f64. Sizes of zero are fine.
#pragma once

#include "core/kernels/dropout.h"
#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstddef>
#include <limits>
#include <span>

namespace tsprun::kernels {

/// What the query at global position i may see. Query index a of a view has position query_start + a, key index b key_start + b.
struct Mask {
  bool causal = false;  ///< keys at positions ≤ i; else all keys
  std::size_t query_start = 0;
  std::size_t key_start = 0;

  /// Every key is seen by every query.
  static Mask none() { return {}; }
  /// The causal mask between two stretches of the sequence. A chunk's queries on the prefix up to the chunk's end: key_start 0
  /// (the mask is aligned to the bottom right). Two chunks of a ring: their starts give full, none or diagonal.
  static Mask from_positions(std::size_t query_start, std::size_t key_start) { return {true, query_start, key_start}; }
};

/// Which K/V head a query head reads, by global numbers: ⌊query head / group⌋. The views may hold any stretch of either.
struct HeadMap {
  std::size_t group = 1;        ///< query heads per K/V head
  std::size_t first_query = 0;  ///< global number of the query view's head 0
  std::size_t first_kv = 0;     ///< global number of the K/V view's head 0
};

/// Where the rows of a view stand in the sequence: in one stretch, or in two, as zigzag cuts a rank's tokens.
struct Positions {
  std::size_t start = 0;                                        ///< of row 0
  std::size_t count = std::numeric_limits<std::size_t>::max();  ///< rows of the first stretch
  std::size_t second = 0;                                       ///< of row `count`

  std::size_t of(std::size_t row) const { return row < count ? start + row : second + (row - count); }
};

/// Dropout of attention probabilities. That of query head n at position i for the key at position j, in sequence b of the whole
/// batch, stays, times 1/(1 − p), where split_mix(split_mix(split_mix(split_mix(key, b), n), i), j)·2⁻⁶⁴, cut to 53 bits, is at
/// least p; else it is 0. All four are global numbers: the same fall whatever the views hold, and in either direction.
struct AttentionDropout {
  Dropout draw = {};
  std::size_t first_sequence = 0;  ///< number in the whole batch of the views' first
  std::size_t first_head = 0;      ///< number in the model of the query view's head 0
  Positions queries = {};
  Positions keys = {};

  /// The same draws for other views.
  AttentionDropout of(std::size_t head, const Positions& of_queries, const Positions& of_keys) const {
    return {draw, first_sequence, head, of_queries, of_keys};
  }
};

struct Attention {
  double scale = 1;  ///< of scores, usually 1/√d; positive
  Mask mask;
  HeadMap heads;
  AttentionDropout dropout = {};  ///< of probabilities; lse is what it is without
};

/// With scores = scale·q·k: o = softmax(scores)·v, lse = ln Σ exp(scores) / scale, that is, in units of q·k, where the largest
/// exponential of a row is exactly 1 in backward too, however large the scores. A query that sees no key gets o = 0, lse = −∞.
/// What can't be computed is NaN: o and lse where q·k overflows the type of sums; lse alone (which backward and merges need)
/// where it would lose more than a part in 256 of the probabilities: in f32 beyond scores of some 2¹⁵, unless one key has all the
/// weight. Infinity or NaN in q, k, v reaches only queries that see them. `o` has q's dtype or that of sums.
void flash_forward(const Compute& on, const Attention& attention, const Tensor& o, const Tensor& lse, const ConstTensor& q,
                   const ConstTensor& k, const ConstTensor& v);
/// Bytes of workspace for flash_forward(): a function of dtype, head dim and threads alone.
std::size_t flash_forward_workspace(DType dtype, std::size_t head_dim, std::size_t threads);

/// delta = rowsum(do ∘ o), which flash_backward() needs: [B, n, Sq]. Float dtypes as in add().
void flash_delta(const Compute& on, const Tensor& delta, const ConstTensor& d_o, const ConstTensor& o);

/// With P = exp(scale·(q·k − lse)) (0 where lse is −∞), R the factors of dropout (1 without) and dS = P ∘ (R ∘ (dO·Vᵀ) − delta):
///   dq = scale·dS·K,  dk = scale·dSᵀ·Q,  dv = (R ∘ P)ᵀ·dO.
/// `d_o` has q's dtype. With Write::add the three are added to what the views hold (several chunks of queries, steps of a ring);
/// sums run over key tiles for dq, over query heads and query tiles for dk and dv, always in that order. K/V heads that no query
/// head of the view reads get zeros.
void flash_backward(const Compute& on, const Attention& attention, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                    const ConstTensor& d_o, const ConstTensor& lse, const ConstTensor& delta, const ConstTensor& q,
                    const ConstTensor& k, const ConstTensor& v, Write write = Write::replace);
/// Bytes of workspace for flash_backward(): a function of dtype, head dim and threads alone.
std::size_t flash_backward_workspace(DType dtype, std::size_t head_dim, std::size_t threads);

/// Merges attention over disjoint sets of keys, in the order given: M = max lse_i, w_i = exp(scale·(lse_i − M)),
/// o = Σ w_i·o_i / Σ w_i, lse = M + ln Σ w_i / scale, `scale` that of the scores; where all are −∞, o = 0 and lse = −∞. `o` may
/// be one of the parts, and `lse` the same one's. At most 64 parts.
void merge_attention(const Compute& on, double scale, const Tensor& o, const Tensor& lse, std::span<const ConstTensor> part_o,
                     std::span<const ConstTensor> part_lse);

}  // namespace tsprun::kernels
