// The operations of a model of Llama's kind as plain loops, forward and backward side by side: the definition that kernels and
// schedules are held against. Nothing here is clever and nothing is shared with core/kernels. The idea is llm.c's train_gpt2.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::reference {

// T is float or double; all sums are in T. Tensors are contiguous, the last dim fastest. Forward functions return their result.
// Backward functions take the gradient of the result (dy) and *add* to the gradients of their inputs, which the caller made zero.
// Preconditions: vectors have the sizes of the shapes; nothing is checked.

/// y = x·wᵀ. x [N, in], w [out, in], y [N, out].
template <class T>
std::vector<T> linear(const std::vector<T>& x, const std::vector<T>& w, std::size_t in, std::size_t out);
/// dx = dy·w, dw = dyᵀ·x.
template <class T>
void linear_backward(std::vector<T>& dx, std::vector<T>& dw, const std::vector<T>& dy, const std::vector<T>& x,
                     const std::vector<T>& w, std::size_t in, std::size_t out);

/// RMSNorm: y = gain ∘ x/√(mean(x²) + ε), row by row. x [N, h], gain [h].
template <class T>
std::vector<T> rms_norm(const std::vector<T>& x, const std::vector<T>& gain, double epsilon);
template <class T>
void rms_norm_backward(std::vector<T>& dx, std::vector<T>& dgain, const std::vector<T>& dy, const std::vector<T>& x,
                       const std::vector<T>& gain, double epsilon);

/// Rotary position embedding as Hugging Face has it (rotate_half): elements i and i + d/2 of a head at position t turn by
/// t·θ^(−2i/d). x [B, S, heads, d]; positions count from 0 in each sequence.
template <class T>
std::vector<T> rope(const std::vector<T>& x, std::size_t sequence, std::size_t heads, std::size_t head_dim, double theta);
/// The turn back; it is linear and orthogonal, so dx = ropeᵀ(dy).
template <class T>
void rope_backward(std::vector<T>& dx, const std::vector<T>& dy, std::size_t sequence, std::size_t heads, std::size_t head_dim,
                   double theta);

struct AttentionSizes {
  std::size_t batch;        // B
  std::size_t sequence;     // S
  std::size_t query_heads;  // n_h
  std::size_t kv_heads;     // n_kv; query head i reads K/V head ⌊i·n_kv/n_h⌋
  std::size_t head_dim;     // d
};
template <class T>
struct Attention {
  std::vector<T> output;         // [B, S, n_h, d]
  std::vector<T> probabilities;  // [B, n_h, S, S], 0 above the diagonal, before dropout
};
/// Causal attention: (R ∘ softmax(q·kᵀ/√d))·v. q [B, S, n_h, d], k and v [B, S, n_kv, d]; R, `factors` of dropout, [B, n_h, S,
/// S]; empty: ones.
template <class T>
Attention<T> attention(const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v, const AttentionSizes& sizes,
                       const std::vector<T>& factors = {});
template <class T>
void attention_backward(std::vector<T>& dq, std::vector<T>& dk, std::vector<T>& dv, const std::vector<T>& doutput,
                        const std::vector<T>& probabilities, const std::vector<T>& q, const std::vector<T>& k,
                        const std::vector<T>& v, const AttentionSizes& sizes, const std::vector<T>& factors = {});

/// SwiGLU: y = gate·sigmoid(gate)·up, element by element.
template <class T>
std::vector<T> swiglu(const std::vector<T>& gate, const std::vector<T>& up);
template <class T>
void swiglu_backward(std::vector<T>& dgate, std::vector<T>& dup, const std::vector<T>& dy, const std::vector<T>& gate,
                     const std::vector<T>& up);

/// Rows of the table. table [V, h], ids [N], y [N, h].
template <class T>
std::vector<T> embedding(const std::vector<T>& table, std::span<const std::int32_t> ids, std::size_t h);
template <class T>
void embedding_backward(std::vector<T>& dtable, const std::vector<T>& dy, std::span<const std::int32_t> ids, std::size_t h);

/// The mean over the tokens with a label ≥ 0 of −log softmax(logits)[label], in nats. logits [N, V], labels [N]. 0 if none has
/// one.
template <class T>
double cross_entropy(const std::vector<T>& logits, std::span<const std::int64_t> labels, std::size_t vocabulary);
template <class T>
void cross_entropy_backward(std::vector<T>& dlogits, const std::vector<T>& logits, std::span<const std::int64_t> labels,
                            std::size_t vocabulary);

}  // namespace tsprun::reference
