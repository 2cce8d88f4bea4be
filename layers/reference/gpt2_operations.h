// The operations of a model of GPT-2's kind that Llama's doesn't have, as plain loops. Conventions: operations.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tsprun::reference {

/// GPT-2's Conv1D: y = x·w + bias. x [N, in], w [in, out], bias [out], y [N, out].
template <class T>
std::vector<T> conv1d(const std::vector<T>& x, const std::vector<T>& w, const std::vector<T>& bias);
template <class T>
void conv1d_backward(std::vector<T>& dx, std::vector<T>& dw, std::vector<T>& dbias, const std::vector<T>& dy,
                     const std::vector<T>& x, const std::vector<T>& w);

/// LayerNorm: y = gain ∘ (x − mean)/√(var + ε) + bias, row by row; var is over h. x [N, h], gain and bias [h].
template <class T>
std::vector<T> layer_norm(const std::vector<T>& x, const std::vector<T>& gain, const std::vector<T>& bias, double epsilon);
template <class T>
void layer_norm_backward(std::vector<T>& dx, std::vector<T>& dgain, std::vector<T>& dbias, const std::vector<T>& dy,
                         const std::vector<T>& x, const std::vector<T>& gain, double epsilon);

/// GeLU: x·Φ(x) with the normal distribution Φ if `exact`, else its tanh form x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2.
template <class T>
std::vector<T> gelu(const std::vector<T>& x, bool exact);
template <class T>
void gelu_backward(std::vector<T>& dx, const std::vector<T>& dy, const std::vector<T>& x, bool exact);

/// Where dropout is used, and what its draws follow from.
enum class DropoutSite : std::uint8_t { embedding, attention, mlp, probabilities };
struct DropoutDraw {
  bool training = false;  ///< else nothing is dropped
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
};

/// What each element of x [N, h], N = B·S tokens in natural order, is multiplied by: 0 or 1/(1 − p). With s(a, n) the n-th number
/// (from 0) of SplitMix64 seeded by a: element i of token t stays where s(s(s(s(s(seed, step), layer), site), t), i), cut to its
/// upper 53 bits as a fraction of 2⁵³, is at least p.
template <class T>
std::vector<T> dropout_factors(const DropoutDraw& draw, double probability, std::size_t layer, DropoutSite site,
                               std::size_t tokens, std::size_t h);

/// What each attention probability [B, n_h, S, S] is multiplied by, in the same way: that of query head n at position i for the
/// key at position j in sequence b stays where s(s(s(s(s(s(s(seed, step), layer), site), b), n), i), j) is at least p.
template <class T>
std::vector<T> attention_dropout_factors(const DropoutDraw& draw, double probability, std::size_t layer, std::size_t batch,
                                         std::size_t heads, std::size_t sequence);

}  // namespace tsprun::reference
