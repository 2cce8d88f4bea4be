// The order of work of TSP attention: which K/V heads are gathered together, and which query heads are computed together.
//
// Turn r works with the weights of owner r. Its query heads are computed in *units*: those that read one *bucket* of K/V heads. A
// bucket is gathered once, in its owner's turn, and stays until the last turn whose query heads read it (where n_kv < D, or where
// cuts don't meet).
#pragma once

#include "layers/heads.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tsprun {

/// K/V heads that are gathered together.
struct TspBucket {
  int owner;
  HeadRange heads;
};

/// Query heads of one turn that read one bucket.
struct TspUnit {
  int turn;
  std::size_t bucket;
  HeadRange queries;
  bool first_of_turn;
  bool last_of_turn;
  bool first_of_bucket;
  bool last_of_bucket;
};

struct TspUnits {
  std::vector<TspBucket> buckets;
  std::vector<TspUnit> units;

  /// Counts the buckets that rank r owns.
  std::size_t buckets_of(int r) const { return static_cast<std::size_t>(std::ranges::count(buckets, r, &TspBucket::owner)); }
};

/// Buckets of at most `bucket_heads` heads.
TspUnits plan_units(const HeadCut& heads, std::size_t kv_heads, std::size_t bucket_heads);

}  // namespace tsprun
