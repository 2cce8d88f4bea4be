// The order of work of TSP attention: which K/V heads are gathered together, and which query heads are computed together.
//
// Turn r computes with the weights of owner r. Its query heads are computed in *units*, each the heads that read one *bucket* of
// K/V heads. A bucket is gathered once, in its owner's turn, and stays until the last turn whose query heads read it; that can be
// a later turn if n_kv < D, or if the cut of the query heads splits a group that shares a K/V head.
#pragma once

#include "layers/layout/heads.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tsprun::detail {

/// K/V heads that are gathered together; all belong to one owner.
struct TspBucket {
  int owner;
  HeadRange heads;
};

/// Query heads of one turn that read one bucket, and where the unit stands in its turn and among the readers of its bucket.
struct TspUnit {
  int turn;
  std::size_t bucket;
  HeadRange queries;
  bool first_of_turn;
  bool last_of_turn;
  bool first_of_bucket;
  bool last_of_bucket;
};

/// All buckets, and all units in the order in which they are computed.
struct TspUnits {
  std::vector<TspBucket> buckets;
  std::vector<TspUnit> units;

  /// Counts the buckets that rank r owns.
  std::size_t buckets_of(int r) const { return static_cast<std::size_t>(std::ranges::count(buckets, r, &TspBucket::owner)); }
};

/// Plans buckets of at most `bucket_heads` K/V heads and the units that read them. Heads of one bucket have the same last reader.
TspUnits plan_units(const HeadCut& heads, std::size_t kv_heads, std::size_t bucket_heads);

}  // namespace tsprun::detail
