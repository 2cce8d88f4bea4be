// Zigzag, the cut that says which tokens of a sequence a rank owns. The sequence is cut into 2D chunks whose sizes differ by at
// most one (the first S mod 2D are one longer; chunks may be empty). Rank p owns chunks p and 2D−1−p, one near each end, so that
// causal attention costs every rank the same. Positions, gathers, masks and labels all use this one table.
//
//   natural order   chunk 0 | 1 | 2 | 3 | 4 | 5        D = 3
//   rank order      0 5 | 1 4 | 2 3                    what an all-gather of the ranks' tokens yields
#pragma once

#include "core/collectives/chunks.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail {

/// Returns the query-key pairs of causal attention at positions below `end` of a sequence or document, where each query sees at
/// most `window` keys, 0: any number. Queries see one key more each, until there are as many as the window.
std::size_t pairs_before(std::size_t end, std::size_t window);

/// The cut of a sequence of S tokens over D ranks.
class Zigzag {
 public:
  /// Cuts `sequence` tokens, any number, over `ranks` ≥ 1 ranks. Throws Error(refused) for fewer than one rank.
  Zigzag(std::size_t sequence, int ranks);

  std::size_t sequence() const { return sequence_; }  ///< S
  int ranks() const { return ranks_; }                ///< D

  std::size_t chunk_start(int chunk) const { return table_.offset(chunk); }
  std::size_t chunk_size(int chunk) const { return table_.count(chunk); }
  /// Returns the position after the chunk's last token, which is the number of keys that its last query sees.
  std::size_t chunk_end(int chunk) const { return chunk_start(chunk) + chunk_size(chunk); }
  /// Returns the two chunks of a rank, in the order in which the rank keeps them.
  std::array<int, 2> chunks_of(int rank) const { return {rank, 2 * ranks_ - 1 - rank}; }

  /// Returns S_p, the number of tokens of a rank.
  std::size_t tokens(int rank) const;
  /// Returns the positions of a rank's tokens in the whole sequence, in the rank's own order, as RoPE takes them.
  std::vector<std::int64_t> positions(int rank) const;

  /// Copies a rank's part of a sequence in natural order to `part`, which has S_p elements: ids, or labels that were already
  /// shifted.
  template <class T>
  void cut(int rank, std::span<const T> natural, std::span<T> part) const {
    std::size_t done = 0;
    for (const int chunk : chunks_of(rank)) {
      for (std::size_t i = 0; i < chunk_size(chunk); ++i) part[done + i] = natural[chunk_start(chunk) + i];
      done += chunk_size(chunk);
    }
  }

  /// Returns the number of query-key pairs that causal attention computes on a rank, for one head of one sequence, where each
  /// query sees at most `window` keys, 0: any number. If S = 2D·c and there is no window, that is 2D·c² + c. `documents`: lengths
  /// of those of which the sequence consists, S together, and which attention doesn't cross; none: it is one.
  std::size_t attention_pairs(int rank, std::size_t window = 0, std::span<const std::uint32_t> documents = {}) const;

 private:
  std::size_t sequence_;
  int ranks_;
  Chunks table_;
};

}  // namespace tsprun::detail
