// Dropout of attention probabilities, tile by tile: which of a tile stay follows from global numbers (AttentionDropout), so
// nothing is stored between the two directions, whatever the tiles.
#pragma once

#include "core/kernels/flash.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tsp::kernels::flash {

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
  /// factors[i] = 1/(1 − p) where key `key` of the view stays for query i, else 0.
  void factors(std::size_t key, float* factors) const;
  void factors(std::size_t key, double* factors) const;

 private:
  AttentionDropout of_;
  std::uint64_t head_key_;
  std::uint64_t threshold_;
  double factor_;
  std::size_t count_ = 0;
  std::array<std::uint64_t, kMostQueries> queries_;  // the beginning of each query's numbers
};

/// row[i] *= factors[i].
void multiply_row(float* row, const float* factors, std::size_t count);
void multiply_row(double* row, const double* factors, std::size_t count);

}  // namespace tsp::kernels::flash
