// The vectorised inner loops of flash attention, on one tile of scores. Forward tiles are stored keys × queries: a row holds the
// scores of one key for all queries of the tile, so that maxima and sums over keys need no sum across the lanes of a vector.
// Backward needs neither; its tiles are queries × keys. Columns are whole vectors: those beyond the tile's last query or key hold
// numbers that nobody uses.
#pragma once

#include <cstddef>

namespace tsprun::kernels::flash {

/// Exponents are taken in multiples of this: ln 2 in f32, where 2^x is cheaper than e^x, and 1 in f64.
template <class T>
inline constexpr double kExponentUnit = sizeof(T) == 4 ? 0.693147180559945309 : 1.0;

/// Query i doesn't see key j where i < j + diagonal.
template <class T>
struct SoftmaxTile {
  T* scores;  ///< [keys, queries], rows `step` apart; in: q·k, out: exp(scale·(q·k − maximum))
  std::size_t keys;
  std::size_t queries;
  std::size_t step;
  std::ptrdiff_t diagonal;
  T scale;
  T* maximum;  ///< [queries] of q·k of all keys so far; the lowest finite number before the first
  T* sum;      ///< [queries] of the exponentials so far
  T* factor;   ///< [queries] out: what earlier sums and outputs were multiplied by, or must be
};
void online_softmax(const SoftmaxTile<float>& tile);
void online_softmax(const SoftmaxTile<double>& tile);

/// Query i doesn't see key j where i < j + diagonal.
template <class T>
struct GradientTile {
  T* p;   ///< [queries, keys], rows `step` apart; in: q·k, out: P
  T* ds;  ///< [queries, keys]; in: dO·Vᵀ, out: scale·P ∘ (dO·Vᵀ − delta)
  std::size_t queries;
  std::size_t keys;
  std::size_t step;
  std::ptrdiff_t diagonal;
  T scale;
  const T* lse;    ///< [queries], in units of q·k; +∞ where the query sees no key at all
  const T* delta;  ///< [queries]
};
void score_gradients(const GradientTile<float>& tile);
void score_gradients(const GradientTile<double>& tile);

/// rows[i][0, width) *= factors[i], rows `step` apart.
void scale_rows(float* rows, std::size_t count, std::size_t width, std::size_t step, const float* factors);
void scale_rows(double* rows, std::size_t count, std::size_t width, std::size_t step, const double* factors);

}  // namespace tsprun::kernels::flash
