// Zigzag: which tokens of a sequence a rank owns. The sequence is cut into 2D chunks whose sizes differ by at most one (the first
// S mod 2D are one longer; chunks may be empty); rank p owns chunks p and 2D−1−p, one near each end, so that causal attention
// costs every rank the same. This table is the only place that knows: positions, gathers, masks and labels all ask it.
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

namespace tsprun {

/// Tokens that lie together in both orders.
struct TokenRun {
  std::size_t natural;     ///< first token in natural order
  std::size_t rank_order;  ///< the same token in rank order
  std::size_t count;
  bool operator==(const TokenRun&) const = default;
};

class Zigzag {
 public:
  /// Any S, any D ≥ 1.
  Zigzag(std::size_t sequence, int ranks);

  std::size_t sequence() const { return sequence_; }  ///< S
  int ranks() const { return ranks_; }                ///< D
  int chunks() const { return 2 * ranks_; }

  std::size_t chunk_start(int chunk) const { return table_.offset(chunk); }
  std::size_t chunk_size(int chunk) const { return table_.count(chunk); }
  /// One past the chunk's last token: how many keys its last query sees.
  std::size_t chunk_end(int chunk) const { return chunk_start(chunk) + chunk_size(chunk); }
  /// The chunks of a rank, in the order in which it keeps them.
  std::array<int, 2> chunks_of(int rank) const { return {rank, 2 * ranks_ - 1 - rank}; }

  /// S_p.
  std::size_t tokens(int rank) const;
  /// S_0 … S_{D−1}: the counts of gathers and scatters along the sequence.
  std::vector<std::size_t> tokens_of_ranks() const;
  /// Where a rank's tokens begin in rank order.
  std::size_t rank_start(int rank) const;
  /// Global positions of a rank's tokens, in its own order: what RoPE takes.
  std::vector<std::int64_t> positions(int rank) const;

  struct Owner {
    int rank;
    std::size_t index;  ///< among the rank's tokens
  };
  Owner owner(std::size_t position) const;

  /// The copies between natural and rank order: one for each chunk that isn't empty, by rank order.
  std::vector<TokenRun> runs() const;

  /// Takes a rank's part out of a sequence in natural order: ids, or labels that were shifted before.
  template <class T>
  void cut(int rank, std::span<const T> natural, std::span<T> part) const {
    std::size_t done = 0;
    for (const int chunk : chunks_of(rank)) {
      for (std::size_t i = 0; i < chunk_size(chunk); ++i) part[done + i] = natural[chunk_start(chunk) + i];
      done += chunk_size(chunk);
    }
  }

  /// Query-key pairs that causal attention computes on a rank, one head, one sequence. 2D·S_c² + S_c where 2D divides S = 2D·S_c.
  std::size_t attention_pairs(int rank) const;

 private:
  std::size_t sequence_;
  int ranks_;
  Chunks table_;
};

}  // namespace tsprun
