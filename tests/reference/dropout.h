// Factors of dropout for the reference, in plain loops. Conventions as in operations.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tsprun::detail::reference {

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
