// Dropout of attention probabilities, tile by tile. Which probabilities are kept follows from global numbers (AttentionDropout in
// flash.h), so forward and backward agree without storing a mask, even where their tiles differ.
#pragma once

#include "core/kernels/flash.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tsprun::detail::kernels::flash {

template <class T>
struct Draws;

/// Dropout factors for tiles of scores of one head of one sequence. take_queries() selects the queries that the later calls refer
/// to. Not thread-safe: each thread has its own.
class TileDropout {
 public:
  /// Largest `count` that take_queries() accepts.
  static constexpr std::size_t kMostQueries = 256;

  /// Prepares for head `head` of sequence `batch`, both as numbers within the query view.
  TileDropout(const AttentionDropout& of, std::size_t batch, std::size_t head);

  /// Returns whether the dropout probability is above 0. If not, call no other function.
  bool any() const { return of_.draw.probability > 0; }
  /// Selects queries [first, first + count) of the view for the calls that follow.
  void take_queries(std::size_t first, std::size_t count);
  /// Writes the factors of the selected queries for keys [first, first + count) of the view: 1/(1 − p) where the probability is
  /// kept, else 0. The factor of key first + j and selected query i goes to factors[j·step + i].
  void factors_by_key(std::size_t first, std::size_t count, float* factors, std::size_t step) const;
  void factors_by_key(std::size_t first, std::size_t count, double* factors, std::size_t step) const;
  /// Writes the factors for keys [first, first + count) of the view and the selected queries [query, query + queries), counted
  /// from the first selected one. The factor of query `query + i` and key first + j goes to factors[i·step + j].
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
  std::array<std::uint64_t, kMostQueries> queries_;  // seed of each selected query's draws
};

/// Multiplies values[i] by factors[i] for i < count.
void multiply_all(float* values, const float* factors, std::size_t count);
void multiply_all(double* values, const double* factors, std::size_t count);

}  // namespace tsprun::detail::kernels::flash
