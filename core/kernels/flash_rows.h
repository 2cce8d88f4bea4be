// Vectorised inner loops of flash attention on one tile of scores. Forward tiles are stored as keys × queries: a row holds the
// scores of one key for all queries of the tile, so maxima and sums over keys need no sum across the lanes of a vector. Backward
// needs neither maxima nor sums; its tiles are queries × keys. A row is padded to whole vectors; its elements beyond the last
// query or key have arbitrary values that are never used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace tsprun::detail::kernels::flash {

/// Unit of exponents: e^x is computed as power(x / unit). It is ln 2 in f32, where 2^x is cheaper than e^x, and 1 in f64.
template <class T>
inline constexpr double kExponentUnit = sizeof(T) == 4 ? 0.693147180559945309 : 1.0;

/// A window that hides nothing: larger than any distance of a query and a key.
inline constexpr std::ptrdiff_t kNoWindow = std::numeric_limits<std::ptrdiff_t>::max() / 2;

/// Positions at which the documents of a tile's queries begin, and of its first key: key j is hidden from query i where
/// key + j < queries[i]. Without queries nothing is hidden.
struct DocumentStarts {
  std::span<const std::uint32_t> queries = {};  ///< never falls
  std::size_t key = 0;
};

/// Documents of a tile's queries and keys where tokens are dealt (Documents in flash.h): key j is hidden from query i unless both
/// have the same, and the key is within the window. Without queries nothing is hidden.
struct DealtDocuments {
  std::span<const std::uint32_t> queries = {};  ///< where the document of each begins in its sequence
  std::span<const std::uint32_t> keys = {};
  const std::uint32_t* query_positions = nullptr;  ///< in their documents
  const std::uint32_t* key_positions = nullptr;
  std::uint32_t window = 0;  ///< 0: none

  bool any() const { return !queries.empty(); }
  bool hides(std::size_t i, std::size_t j) const {
    return queries[i] != keys[j] || (window > 0 && query_positions[i] - key_positions[j] >= window);
  }
};

/// Tile of forward scores with the running state of its queries; the struct owns nothing. Query i sees key j where
/// j + diagonal ≤ i < j + diagonal + window, unless documents hide it.
template <class T>
struct SoftmaxTile {
  T* scores;  ///< [keys, queries], rows `step` apart; in: q·k, out: exp(scale·(u − maximum)), u as in flash.h
  std::size_t keys;
  std::size_t queries;
  std::size_t step;
  std::ptrdiff_t diagonal;
  std::ptrdiff_t window = kNoWindow;
  DocumentStarts documents = {};
  DealtDocuments dealt = {};
  T scale;
  T bound = 0;  ///< of a soft cap, in units of q·k; 0: none
  T* maximum;   ///< [queries], largest u of all keys so far; the lowest finite number before the first tile
  T* sum;       ///< [queries], sum of the exponentials so far
  T* factor;    ///< [queries], out: factor by which `sum` was, and earlier outputs must be, multiplied
};
/// Replaces the tile's scores by their exponentials and updates maximum, sum and factor (online softmax).
void online_softmax(const SoftmaxTile<float>& tile);
void online_softmax(const SoftmaxTile<double>& tile);

/// Tile of backward scores; the struct owns nothing. Query i sees key j where j + diagonal ≤ i < j + diagonal + window, unless
/// documents hide it.
template <class T>
struct GradientTile {
  T* p;   ///< [queries, keys], rows `step` apart; in: q·k, out: P
  T* ds;  ///< [queries, keys]; in: dO·Vᵀ, out: scale·P ∘ (dO·Vᵀ − delta), times the slope of a soft cap
  std::size_t queries;
  std::size_t keys;
  std::size_t step;
  std::ptrdiff_t diagonal;
  std::ptrdiff_t window = kNoWindow;
  DocumentStarts documents = {};
  DealtDocuments dealt = {};
  T scale;
  T bound = 0;       ///< as in SoftmaxTile
  const T* maximum;  ///< [queries], the log-sum-exp's two elements; the maximum is +∞ where the query sees no key at all
  const T* log_sum;  ///< [queries]
  const T* delta;    ///< [queries]
};
/// Computes P and dS of the tile in place; both are 0 for keys that a query doesn't see.
void score_gradients(const GradientTile<float>& tile);
void score_gradients(const GradientTile<double>& tile);

/// Multiplies each of the `count` rows by its factor: rows[i·step + j] *= factors[i] for j < width.
void scale_rows(float* rows, std::size_t count, std::size_t width, std::size_t step, const float* factors);
void scale_rows(double* rows, std::size_t count, std::size_t width, std::size_t step, const double* factors);

}  // namespace tsprun::detail::kernels::flash
