// How large the pieces are in which schedules do what they never hold as a whole. Larger ones read operands less often and make
// larger products; smaller ones stay in caches.
#pragma once

#include <cstddef>

namespace tsprun::detail {

/// Sizes of pieces, in bytes. The defaults are those of real ranks, which are processors. They decide which kernels run, hence
/// the order of some sums, so the ranks of a job have the same ones.
struct PieceSizes {
  std::size_t logits = std::size_t{8} << 20;      ///< of a tile of logits; it has at least 64 rows
  std::size_t kv_bucket = std::size_t{64} << 20;  ///< K and V of some heads over whole sequences; at least one head

  bool operator==(const PieceSizes&) const = default;
};

}  // namespace tsprun::detail
