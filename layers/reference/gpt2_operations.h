// Reference operations of GPT-2-like models that Llama-like ones don't have, as plain loops. Conventions as in operations.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tsprun::detail::reference {

/// Returns GPT-2's Conv1D, y = x·w + bias. x [N, in], w [in, out], bias [out], y [N, out].
template <class T>
std::vector<T> conv1d(const std::vector<T>& x, const std::vector<T>& w, const std::vector<T>& bias);
/// Adds the gradients of conv1d() to dx, dw and dbias.
template <class T>
void conv1d_backward(std::vector<T>& dx, std::vector<T>& dw, std::vector<T>& dbias, const std::vector<T>& dy,
                     const std::vector<T>& x, const std::vector<T>& w);

/// Returns LayerNorm, y = gain ∘ (x − mean)/√(var + ε) + bias, row by row; mean and var are over h. x [N, h], gain and bias [h].
template <class T>
std::vector<T> layer_norm(const std::vector<T>& x, const std::vector<T>& gain, const std::vector<T>& bias, double epsilon);
/// Adds the gradients of layer_norm() to dx, dgain and dbias.
template <class T>
void layer_norm_backward(std::vector<T>& dx, std::vector<T>& dgain, std::vector<T>& dbias, const std::vector<T>& dy,
                         const std::vector<T>& x, const std::vector<T>& gain, double epsilon);

/// Returns GeLU: x·Φ(x) if `exact`, with Φ the standard normal distribution function, otherwise the tanh form, x·(1 +
/// tanh(√(2/π)·(x + 0.044715·x³)))/2.
template <class T>
std::vector<T> gelu(const std::vector<T>& x, bool exact);
/// Adds the gradient of gelu() to dx.
template <class T>
void gelu_backward(std::vector<T>& dx, const std::vector<T>& dy, const std::vector<T>& x, bool exact);

/// Places where a model uses dropout. Their numbers enter the draws.
enum class DropoutSite : std::uint8_t { embedding, attention, mlp, probabilities };
/// Seed and step that the dropout of one pass follows from.
struct DropoutDraw {
  bool training = false;  ///< if false, nothing is dropped
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
};

/// Returns the factor, 0 or 1/(1 − p), of each element of x [N, h]; N = B·S tokens in natural order. With s(a, n) the n-th number
/// (from 0) of SplitMix64 seeded by a, element i of token t is kept if the upper 53 bits of s(s(s(s(s(seed, step), layer), site),
/// t), i), as a fraction of 2⁵³, are at least p. All factors are 1 if `draw` isn't training.
template <class T>
std::vector<T> dropout_factors(const DropoutDraw& draw, double probability, std::size_t layer, DropoutSite site,
                               std::size_t tokens, std::size_t h);

/// Returns the factor of each attention probability, [B, n_h, S, S], in the same way: that of query head n at position i for the
/// key at position j in sequence b is kept if s(s(s(s(s(s(s(seed, step), layer), site), b), n), i), j), as a fraction, is at
/// least p.
template <class T>
std::vector<T> attention_dropout_factors(const DropoutDraw& draw, double probability, std::size_t layer, std::size_t batch,
                                         std::size_t heads, std::size_t sequence);

}  // namespace tsprun::detail::reference
