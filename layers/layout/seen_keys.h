// Which keys of a sequence the queries of each rank see in a layer with a window, and so which rows of K and V move between
// ranks.
//
// Queries of a chunk see the positions from W − 1 before its first token on, up to its end. With its two chunks a rank sees two
// stretches of the sequence, or one. Of a chunk that isn't its own it sees the last tokens, if any:
//
//   D = 4, W − 1 = half a chunk     chunk  0 | 1 | 2 | 3 | 4 | 5 | 6 | 7
//                                  rank 1 ·█|███|···|···|···|·█|███|···     has chunks 1 and 6; takes half of 0 and half of 5
//
// Without a window, or with one that is as long as the sequence, each rank takes all keys, also those that lie behind its
// queries: a collective brings them. So it is, too, where a window goes back over more than two chunks and there are more than
// eight ranks: messages to all who see a key would cross nodes more often than the collective, and be many.
#pragma once

#include "layers/layout/zigzag.h"

#include <array>
#include <cstddef>

namespace tsprun::detail {

/// The keys that each rank takes.
class SeenKeys {
 public:
  static constexpr int kFewRanks = 8;           ///< so many take from each other what any window shows
  static constexpr std::size_t kFewChunks = 2;  ///< more ranks do if it goes back over so many chunks at most

  /// `window`: positions that a query sees, its own included; 0: all up to its own.
  SeenKeys(const Zigzag& cut, std::size_t window);

  /// Returns whether each rank takes all keys of the sequence.
  bool all() const { return window_ == 0; }
  /// Returns how many keys a rank takes, its own among them, that lie before `position`. They lie one behind the other in the
  /// rank's K and V, so this is also the row of the first one from `position` on.
  std::size_t before(int rank, std::size_t position) const { return count(rank, 0, position); }
  /// Returns how many of the keys at positions [begin, end) a rank takes, and how many in all.
  std::size_t count(int rank, std::size_t begin, std::size_t end) const;
  std::size_t count(int rank) const { return before(rank, cut_.sequence()); }
  /// Returns how many keys a rank takes from others, and how many others, all together, take from it.
  std::size_t taken(int rank) const { return count(rank) - cut_.tokens(rank); }
  std::size_t given(int rank) const;
  /// Returns how many keys all ranks take from others.
  std::size_t moved() const;
  /// Returns false if chunks of two ranks are so far apart that neither takes keys of the other. It is quicker than counting.
  bool may_share(int one, int other) const;
  /// Returns the position of the first key that queries of this chunk are shown, from which on to the chunk's end its rank has
  /// all keys: 0, or the first within the window.
  std::size_t first_of(int chunk) const;

 private:
  struct Stretch {
    std::size_t begin;
    std::size_t end;
  };
  Stretch seen_by(int chunk) const;
  std::array<Stretch, 2> stretches(int rank) const;

  Zigzag cut_;
  std::size_t window_;  // 0: all keys
  int reach_;           // chunks that a window goes back at most
};

}  // namespace tsprun::detail
