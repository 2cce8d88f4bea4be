// Dropout of attention probabilities, tile by tile: which of a tile stay follows from global numbers (AttentionDropout), so
// nothing is stored between the two directions, whatever the tiles.
#pragma once

#include "core/kernels/flash.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tsprun::kernels::flash {

template <class T>
struct Draws;

/// Some queries of one head of one sequence.
class TileDropout {
 public:
  /// At most so many queries at a time.
  static constexpr std::size_t kMostQueries = 256;

  /// `batch` and `head`: numbers in the query view.
  TileDropout(const AttentionDropout& of, std::size_t batch, std::size_t head);

  /// Whether anything may be dropped. If not, the rest must not be called.
  bool any() const { return of_.draw.probability > 0; }
  /// The queries [first, first + count) of the view are those of what follows.
  void take_queries(std::size_t first, std::size_t count);
  /// For every key of the view in [first, first + count) and every query i: 1/(1 − p) where the key stays for the query, else 0.
  /// That of key first + j is factors[j·step + i].
  void factors_by_key(std::size_t first, std::size_t count, float* factors, std::size_t step) const;
  void factors_by_key(std::size_t first, std::size_t count, double* factors, std::size_t step) const;
  /// Of queries [query, query + queries) of those taken: the factor of query + i and key first + j is factors[i·step + j].
  void factors_by_query(std::size_t query, std::size_t queries, std::size_t first, std::size_t count, float* factors,
                        std::size_t step) const;
  void factors_by_query(std::size_t query, std::size_t queries, std::size_t first, std::size_t count, double* factors,
                        std::size_t step) const;

 private:
  template <class T>
  Draws<T> draws(std::size_t query, std::size_t queries, std::size_t first, std::size_t count, T* factors,
                 std::size_t step) const;

  AttentionDropout of_;
  std::uint64_t head_key_;
  std::uint64_t threshold_;
  double factor_;
  std::size_t count_ = 0;
  std::array<std::uint64_t, kMostQueries> queries_;  // the beginning of each query's numbers
};

/// values[i] *= factors[i].
void multiply_all(float* values, const float* factors, std::size_t count);
void multiply_all(double* values, const double* factors, std::size_t count);

}  // namespace tsprun::kernels::flash
