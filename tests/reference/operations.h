// Reference operations as plain loops, forward and backward side by side. Kernels and schedules are tested
// against them, so they are kept simple and share nothing with core/kernels. The idea is llm.c's train_gpt2.c.
#pragma once

#include "layers/io/rope_scaling.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail::reference {

// T is float or double, and sums are in T (the mean of cross_entropy() is in f64). Tensors are contiguous, with the last dim
// fastest. Forward functions return their result. Backward functions take the gradient of the result (dy) and *add* to the
// gradients of their inputs, which the caller has initialised with zeros. Precondition: vectors have the sizes of the shapes;
// nothing is checked.

/// Returns RMSNorm, y = gain ∘ x/√(mean(x²) + ε), row by row. x [N, h], gain [h].
template <class T>
std::vector<T> rms_norm(const std::vector<T>& x, const std::vector<T>& gain, double epsilon);
/// Adds the gradients of rms_norm() to dx and dgain.
template <class T>
void rms_norm_backward(std::vector<T>& dx, std::vector<T>& dgain, const std::vector<T>& dy, const std::vector<T>& x,
                       const std::vector<T>& gain, double epsilon);

/// Returns LayerNorm, y = gain ∘ (x − mean)/√(var + ε) + bias, row by row; mean and var are over h. x [N, h], gain and bias [h].
template <class T>
std::vector<T> layer_norm(const std::vector<T>& x, const std::vector<T>& gain, const std::vector<T>& bias, double epsilon);
/// Adds the gradients of layer_norm() to dx, dgain and dbias.
template <class T>
void layer_norm_backward(std::vector<T>& dx, std::vector<T>& dgain, std::vector<T>& dbias, const std::vector<T>& dy,
                         const std::vector<T>& x, const std::vector<T>& gain, double epsilon);

/// How rope() rotates.
struct Rope {
  double theta = 10000;
  RopeScaling scaling = {};
  std::size_t dims = 0;      ///< r, the first dims of a head, which turn; 0: all
  bool interleaved = false;  ///< pairs are (2i, 2i + 1), not (i, i + r/2)
  bool of_queries = false;   ///< multiplied by the scaling's factor that grows with the position, too
};
/// Returns x with rotary position embedding (RoPE): pair i of a head at position t is rotated by the angle t·θ^(−2i/r), scaled,
/// and multiplied by the scaling's factor. x [B, S, heads, d]; positions count from 0 in each sequence.
template <class T>
std::vector<T> rope(const std::vector<T>& x, std::size_t sequence, std::size_t heads, std::size_t head_dim, const Rope& of);
/// Adds dy, rotated back, to dx. RoPE is linear and, but for a factor, orthogonal, so this is the product with its transpose.
template <class T>
void rope_backward(std::vector<T>& dx, const std::vector<T>& dy, std::size_t sequence, std::size_t heads, std::size_t head_dim,
                   const Rope& of);

/// Sizes of an attention call.
struct AttentionSizes {
  std::size_t batch;        // B
  std::size_t sequence;     // S
  std::size_t query_heads;  // n_h
  std::size_t kv_heads;     // n_kv; query head i reads K/V head ⌊i·n_kv/n_h⌋
  std::size_t head_dim;     // d
  double scale = 0;         // factor of scores; 0: 1/√d
  std::size_t window = 0;   // keys that a query sees, the last of which is its own; 0: all up to its own
  double cap = 0;           // soft cap of scores; 0: none
};
/// Results of attention().
template <class T>
struct Attention {
  std::vector<T> output;         // [B, S, n_h, d]
  std::vector<T> probabilities;  // [B, n_h, S, S], 0 above the diagonal and before the window, before dropout
};
/// Returns causal attention, (R ∘ softmax(scores))·v, where scores are scale·q·kᵀ, or with a cap c: c·tanh(scale·q·kᵀ/c). q [B,
/// S, n_h, d], k and v [B, S, n_kv, d]. R are the dropout factors, `factors` [B, n_h, S, S]; if empty, all are 1.
template <class T>
Attention<T> attention(const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v, const AttentionSizes& sizes,
                       const std::vector<T>& factors = {});
/// Adds the gradients of attention() to dq, dk and dv. `probabilities` are those that attention() returned, `factors` those that
/// it was given.
template <class T>
void attention_backward(std::vector<T>& dq, std::vector<T>& dk, std::vector<T>& dv, const std::vector<T>& doutput,
                        const std::vector<T>& probabilities, const std::vector<T>& q, const std::vector<T>& k,
                        const std::vector<T>& v, const AttentionSizes& sizes, const std::vector<T>& factors = {});

/// Returns SwiGLU, y = gate·sigmoid(gate)·up, element by element.
template <class T>
std::vector<T> swiglu(const std::vector<T>& gate, const std::vector<T>& up);
/// Adds the gradients of swiglu() to dgate and dup.
template <class T>
void swiglu_backward(std::vector<T>& dgate, std::vector<T>& dup, const std::vector<T>& dy, const std::vector<T>& gate,
                     const std::vector<T>& up);

/// Returns GeLU: x·Φ(x) if `exact`, with Φ the standard normal distribution function, otherwise the tanh form, x·(1 +
/// tanh(√(2/π)·(x + 0.044715·x³)))/2.
template <class T>
std::vector<T> gelu(const std::vector<T>& x, bool exact);
/// Adds the gradient of gelu() to dx.
template <class T>
void gelu_backward(std::vector<T>& dx, const std::vector<T>& dy, const std::vector<T>& x, bool exact);

/// Returns the rows of the table that the ids select. table [V, h], ids [N], y [N, h].
template <class T>
std::vector<T> embedding(const std::vector<T>& table, std::span<const std::int32_t> ids, std::size_t h);
/// Adds each row of dy to the row of dtable that its id selects.
template <class T>
void embedding_backward(std::vector<T>& dtable, const std::vector<T>& dy, std::span<const std::int32_t> ids, std::size_t h);

/// Returns the mean of −log softmax(logits)[label], in nats, over the tokens with a label ≥ 0; 0 if there are none. logits [N,
/// V], labels [N].
template <class T>
double cross_entropy(const std::vector<T>& logits, std::span<const std::int64_t> labels, std::size_t vocabulary);
/// Adds the gradient of cross_entropy() to dlogits; 0 for tokens without a label.
template <class T>
void cross_entropy_backward(std::vector<T>& dlogits, const std::vector<T>& logits, std::span<const std::int64_t> labels,
                            std::size_t vocabulary);

}  // namespace tsprun::detail::reference
