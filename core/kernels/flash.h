// Flash attention: softmax(scale·Q·Kᵀ + mask)·V and its gradients, computed tile by tile, so that memory never grows with the
// product of queries and keys.
//
// Shapes: q, o, dq [B, Sq, n, d]; k, v, dk, dv [B, Sk, n_kv, d]; delta [B, n, Sq]; lse [B, n, Sq], or [B, n, Sq, 2] where it
// is to be kept in two numbers. In the four-dimensional views the last dim is dense and all other strides are free, so heads,
// chunks and batches can be slices of larger tensors. q, k and v have one dtype (bf16, f32 or f64); lse, delta and the gradients
// have the type of sums: f32, or f64 in f64. Sizes of zero are allowed. Views that don't fit throw std::invalid_argument.
//
// Below the kernel level avx512_bf16 (level.h), bf16 is widened and everything is computed in the type of sums. From it on,
// products of bf16 operands are computed in bf16 units (pair_panels.h), as FlashAttention does on GPUs: products of two operands
// (q·k and dO·v) are exact and summed in f32; the softmax, lse, delta and all sums are in f32; but the second products read
// probabilities and dS, each after dropout and scale, rounded to bf16 (to nearest, ties to even: by up to 2⁻⁸ of the value). lse
// is of the probabilities before rounding. Attention of one query that sees all keys (flash_single.h) is the same at every level.
#pragma once

#include "core/kernels/dropout.h"
#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace tsprun::detail::kernels {

/// Documents that are packed one behind the other into the sequences of a batch, and that attention doesn't cross. Borrows
/// starts [B, length]: starts[b·length + i] is the position at which the document of position i of sequence b begins, in tokens
/// from the sequence's own beginning. So it is at most i, and never falls within a sequence. Null: each sequence is one document.
struct Documents {
  const std::uint32_t* starts = nullptr;
  std::size_t length = 0;  ///< positions of a sequence
  bool alike = false;      ///< all sequences have the same documents, and the tables are [length]
  /// Positions in their documents, as `starts`, where each sequence's tokens are dealt (layers/layout/dealt_documents.h): those
  /// of a document keep their order, but others stand between them. Then masks' positions are places in the order that is dealt,
  /// and starts[b·length + i] is where the document of the token at place i begins in the sequence itself, which tells documents
  /// apart. A query sees the keys of its document at its own place and before it, and a window counts positions in the document.
  /// Null: places are positions.
  const std::uint32_t* positions = nullptr;

  bool any() const { return starts != nullptr; }
  bool dealt() const { return positions != nullptr; }
  /// Returns the starts of sequence `number`. Precondition: any().
  std::span<const std::uint32_t> of(std::size_t number) const { return {starts + (alike ? 0 : number * length), length}; }
  /// Returns the positions of sequence `number`. Precondition: dealt().
  std::span<const std::uint32_t> positions_of(std::size_t number) const {
    return {positions + (alike ? 0 : number * length), length};
  }
};

/// Attention mask by global positions: query a of a view is at position query_start + a, key b at key_start + b.
struct Mask {
  bool causal = false;  ///< true: a query at position i sees keys at positions ≤ i; false: all keys
  std::size_t query_start = 0;
  std::size_t key_start = 0;
  /// Number of positions that a query sees, its own included: i − window < j ≤ i, as transformers' sliding_window. 0: no window.
  /// A window goes only with a causal mask. Tiles that lie wholly outside of it are skipped.
  std::size_t window = 0;
  /// Documents of the views' sequences: a query sees the keys of its own document only, of which a window may hide the first.
  /// They go only with a causal mask, and positions of queries and keys must be within their sequences. Tiles that no query sees
  /// are skipped.
  Documents documents = {};

  /// Returns the mask under which every query sees every key.
  static Mask none() { return {}; }
  /// Returns the causal mask between two stretches of a sequence that begin at these positions. For a chunk's queries on all keys
  /// up to the chunk's end, use key_start 0 (the mask is then aligned to the bottom right). For two chunks of ring attention,
  /// their starts make the mask full, empty or diagonal.
  static Mask from_positions(std::size_t query_start, std::size_t key_start, std::size_t window = 0,
                             const Documents& documents = {}) {
    return {true, query_start, key_start, window, documents};
  }
};

/// Mapping from query heads to the K/V heads that they read, by head numbers of the whole model: K/V head = ⌊query head / group⌋.
/// The views may hold any consecutive heads, but the K/V view must hold each head that the query view's heads read.
struct HeadMap {
  std::size_t group = 1;        ///< query heads per K/V head
  std::size_t first_query = 0;  ///< number in the whole model of the query view's head 0
  std::size_t first_kv = 0;     ///< number in the whole model of the K/V view's head 0
};

/// Positions in the sequence of a view's rows, which are one stretch of it, or two, as zigzag cuts a rank's tokens.
struct Positions {
  std::size_t start = 0;                                        ///< position of row 0
  std::size_t count = std::numeric_limits<std::size_t>::max();  ///< rows of the first stretch
  std::size_t second = 0;                                       ///< position of row `count`

  /// Returns the position of row `row`.
  std::size_t of(std::size_t row) const { return row < count ? start + row : second + (row - count); }
};

/// Dropout of attention probabilities. Each draw depends only on a key and on four global numbers: sequence b of the whole batch,
/// query head n, query position i and key position j. So forward and backward drop the same probabilities, whatever the views
/// hold. With u the upper 53 bits of split_mix(split_mix(split_mix(split_mix(key, b), n), i), j) as a fraction of 2⁵³, a
/// probability is multiplied by 1/(1 − p) where u ≥ p, and is 0 elsewhere.
struct AttentionDropout {
  Dropout draw = {};
  std::size_t first_sequence = 0;  ///< number in the whole batch of the views' first sequence
  std::size_t first_head = 0;      ///< number in the whole model of the query view's head 0
  Positions queries = {};
  Positions keys = {};

  /// Returns the same dropout for views with another first head and other positions.
  AttentionDropout of(std::size_t head, const Positions& of_queries, const Positions& of_keys) const {
    return {draw, first_sequence, head, of_queries, of_keys};
  }
};

/// Parameters of one attention call, shared by flash_forward() and flash_backward().
struct Attention {
  double scale = 1;  ///< factor of the scores q·k, usually 1/√d; must be positive
  Mask mask;
  HeadMap heads;
  AttentionDropout dropout = {};  ///< of probabilities; it doesn't change lse
  /// Soft cap of the scores, before the mask: cap·tanh(scale·q·k / cap) takes the place of scale·q·k. 0: none. A
  /// product that overflows, or is infinite, becomes NaN rather than ±cap.
  double cap = 0;

  /// Returns the cap in units of q·k, cap / scale; 0: none.
  double bound() const { return cap / scale; }
};

/// Computes, with scores = scale·u, o = softmax(scores)·v and the log-sum-exp of the scores: in two numbers (M, l), where
/// M = max u and l = ln Σ exp(scale·(u − M)), or in one, M + l / scale. u is q·k, or with a soft cap bound·tanh(q·k / bound),
/// where bound = cap / scale: the cap is applied to the product before it is scaled, which gives the same scores, so u and lse
/// are in units of q·k with a cap, too, and merge_attention() needs no cap. They aren't in units of scores, so that backward and
/// merges subtract before they scale: differences then stay precise however large the scores are. A query that sees no key gets o
/// = 0 and lse = (−∞, 0) or −∞. `o` has q's dtype or the type of sums. Needs flash_forward_workspace() bytes of workspace.
///
/// Results that can't be represented are NaN: o and lse where q·k overflows the type of sums; lse alone, if it is one number,
/// where rounding it would change probabilities by more than a part in 256. In f32 that takes scores beyond about 2¹⁵, unless one
/// key has all the weight. Infinity or NaN in q, k or v reaches only the queries that see them.
void flash_forward(const Compute& on, const Attention& attention, const Tensor& o, const Tensor& lse, const ConstTensor& q,
                   const ConstTensor& k, const ConstTensor& v);
/// Returns the bytes of workspace that flash_forward() needs. They depend on dtype, head dim and threads only, not on the level.
std::size_t flash_forward_workspace(DType dtype, std::size_t head_dim, std::size_t threads);

/// Computes delta = rowsum(do ∘ o), [B, n, Sq], which flash_backward() needs. do and o may mix bf16 and f32; f64 goes only with
/// f64.
void flash_delta(const Compute& on, const Tensor& delta, const ConstTensor& d_o, const ConstTensor& o);

/// Computes the gradients of flash_forward(). With (M, l) = lse, or (lse, 0) if it is one number, P = exp(scale·(u − M) − l) (0
/// where M is −∞), R the dropout factors (1 without dropout) and dS = P ∘ (R ∘ (dO·Vᵀ) − delta) ∘ du, where du = 1 − (u / bound)²
/// is the slope of a soft cap (1 without one):
///   dq = scale·dS·K,  dk = scale·dSᵀ·Q,  dv = (R ∘ P)ᵀ·dO.
/// `d_o` has q's dtype. With Write::add the three results are added to what the views hold (for several chunks of queries, or
/// steps of a ring). Sums run over key tiles for dq, and over query heads and query tiles for dk and dv, always in that order, so
/// the number of threads changes no bit. In bf16 units, what is rounded is R ∘ P for dv, and scale·dS for dq and dk. K/V heads
/// that no query head of the view reads get zeros. Needs flash_backward_workspace() bytes of workspace.
void flash_backward(const Compute& on, const Attention& attention, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                    const ConstTensor& d_o, const ConstTensor& lse, const ConstTensor& delta, const ConstTensor& q,
                    const ConstTensor& k, const ConstTensor& v, Write write = Write::replace);
/// Returns the bytes of workspace that flash_backward() needs. They depend on dtype, head dim and threads only, not on the level.
std::size_t flash_backward_workspace(DType dtype, std::size_t head_dim, std::size_t threads);

/// Merges attention results over disjoint sets of keys, in the order given, whether or not their scores have a soft cap:
///   M = max M_i, w_i = exp(scale·(M_i − M) + l_i), o = Σ w_i·o_i / Σ w_i, lse = (M, ln Σ w_i),
/// where log-sum-exps of one number are (lse, 0). `scale` is that of the scores. Where all M_i are −∞, o = 0 and lse = (−∞, 0).
/// `o` may be one of `part_o`; `lse` may then be the matching one of `part_lse`. Takes 1 to 64 parts, otherwise throws
/// std::invalid_argument.
void merge_attention(const Compute& on, double scale, const Tensor& o, const Tensor& lse, std::span<const ConstTensor> part_o,
                     std::span<const ConstTensor> part_lse);

/// Writes log-sum-exps in two numbers, `two` [B, n, S, 2], as one number each, as flash_forward() does. `one`: [B, n, S].
void round_lse(double scale, const Tensor& one, const ConstTensor& two);
/// Returns whether one number couldn't hold the log-sum-exp of some query: lse [B, n, S] is NaN, but o [B, S, n, d] is finite.
bool has_lost_lse(const ConstTensor& lse, const ConstTensor& o);

}  // namespace tsprun::detail::kernels
