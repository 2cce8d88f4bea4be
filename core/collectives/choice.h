// The table that chooses an algorithm for each operation, which can be printed and overridden; and the sizes at which algorithms
// change how they send.
//
// The choice depends only on facts that are the same on all ranks of a group (operation, bytes, group size, whether all members
// can read each other's memory, which members share a node), so that all ranks choose the same algorithm.
#pragma once

#include "tsprun/types.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

struct AlgorithmRow;

/// Returns true if this algorithm is implemented for an operation: if the registry has a row for it.
bool has_algorithm(Op op, Algorithm algorithm);
/// Returns the names of all algorithms of an operation, for people: "direct, ring and hierarchical".
std::string algorithm_names(Op op);

/// Properties of a group on which the choice depends.
struct GroupShape {
  int ranks = 1;
  bool views = true;                                     ///< all members can read each other's memory in place
  bool grid = false;                                     ///< the group forms a Grid
  bool grid_views = false;                               ///< it does, and members of a node can read each other's memory in place
  std::string_view no_grid = "the group forms no grid";  ///< why it doesn't
};

/// A row of the table; the first that fits wins. What an override asks for must be possible on the world, or the job is refused.
struct ChoiceRow {
  Op op;
  std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max();  ///< size of the whole buffer, as `bench` counts it
  int max_ranks = std::numeric_limits<int>::max();                      ///< size of the group
  bool needs_views = false;       ///< fits only if all members can read each other's memory in place
  Algorithm algorithm;            ///< fits only groups on which it can run: see ChoiceTable::why_not()
  bool needs_grid_views = false;  ///< fits only if members of a node can read each other's memory in place
  bool if_tree_is_faster =
      false;  ///< fits only what is_tree_faster() says of groups that can't read each other's memory in place
};

/// The table of choices: the first row that fits an operation names its algorithm.
class ChoiceTable {
 public:
  /// Makes the built-in table.
  ChoiceTable();
  /// Makes the built-in table with overrides before it: "all_reduce=ring,all_gather<64K=direct" (direct for fewer than 64 KiB).
  /// `reassociate`: allows algorithms whose order of summation depends on which rank is on which node. Throws Error(refused)
  /// naming the part that is wrong and what would work.
  explicit ChoiceTable(std::string_view overrides, bool reassociate = false);

  /// Returns the algorithm for an operation with `bytes` in its whole buffer.
  Algorithm choose(Op op, std::uint64_t bytes, const GroupShape& group) const;
  bool reassociates() const { return reassociate_; }
  /// Returns the reason why an operation can't use this algorithm on this group; empty if it can.
  std::string why_not(Op op, Algorithm algorithm, const GroupShape& group) const;
  const std::vector<ChoiceRow>& rows() const { return rows_; }
  /// Returns the rows that were added to the built-in ones, which stand before them.
  std::span<const ChoiceRow> overrides() const { return std::span(rows_).first(overrides_); }

 private:
  std::string_view why_not(const AlgorithmRow& row, const GroupShape& group) const;

  std::vector<ChoiceRow> rows_;
  std::size_t overrides_ = 0;
  bool reassociate_ = false;
};

/// Largest all_reduce, in bytes, that uses one_shot by default. Above it, the second round of the direct algorithm costs less
/// than the additional bytes that one_shot reads and adds.
inline constexpr std::uint64_t kOneShotBytes = 16 * 1024;
/// Largest buffer, in bytes, that a tree all_reduce sums: beside it the tree holds sums, those that come, and results, three
/// times as much, and five times if sums have a wider type.
inline constexpr std::uint64_t kTreeBytes = 8 * 1024 * 1024;
/// Largest chunk of a rank, in bytes, with which a tree is faster than a ring: a hop of a ring then costs about as much in
/// latency as in bytes, and a tree has fewer.
inline constexpr std::uint64_t kTreeChunkBytes = 256 * 1024;
/// Returns whether an all_reduce among so many ranks on nodes of their own takes a tree rather than a ring, where sums may be
/// added in any order. Of three ranks and fewer a tree has no fewer steps.
constexpr bool is_tree_faster(std::uint64_t bytes, int ranks) {
  return ranks > 3 && bytes <= kTreeBytes && bytes <= kTreeChunkBytes * static_cast<std::uint64_t>(ranks);
}
/// Largest payload, in bytes, that is copied to staging memory before peers read it, unless they read it in place (see Offer).
/// The operation is then complete as soon as the peers' data has arrived, without waiting until they have read this rank's.
inline constexpr std::uint64_t kStagedBytes = 64 * 1024;
/// Largest payload in the heap, in bytes, that a blocking collective stages where ranks share cores and could read it in place.
/// Waiting until they have read costs turns of the core then; copies of more cost more than that.
inline constexpr std::uint64_t kStagedFromHeapBytes = 16 * 1024;
/// Size of a stream's staging memory in bytes: how far a rank that only sends can run ahead of its readers.
inline constexpr std::uint64_t kStagingRingBytes = 2 * kStagedBytes;
/// Largest payload for several peers, in bytes, that is copied into each peer's lane: cheaper than one staged copy whose readers
/// must be tracked. So is one for a single peer that could be read in place (see Offer).
inline constexpr std::uint64_t kCopiedBytes = 1024;
/// Largest payload for a single peer, in bytes, that is copied into the lane, unless it is read in place (see Offer). Staging it
/// would take one copy, too, so this is as much as a lane takes.
inline constexpr std::uint64_t kCopiedOnceBytes = 8 * 1024;
/// Largest message, in bytes, that is received into its place rather than viewed in the sender's memory and copied.
inline constexpr std::uint64_t kReceivedBytes = 8 * 1024;
/// Work of one step of an operation, in bytes, after which other streams get their turn; also the size of the segments in which a
/// reduced or forwarded chunk is passed on. Small enough for the cache of a core.
inline constexpr std::uint64_t kSegmentBytes = 1024 * 1024;
/// Largest buffer, in bytes, that a direct algorithm moves at once: a larger one goes in rounds (rounds.h), so that a rank whose
/// buffers don't lie in the heap copies no more than that at a time. The same for all buffers, as a rank doesn't know where
/// others' lie. A large part of a round's time is still spent on memory, not on the ranks' meeting.
inline constexpr std::uint64_t kRoundBytes = 32 * 1024 * 1024;
/// Smallest part of a round for one rank, in bytes, however many ranks there are.
inline constexpr std::uint64_t kRoundPartBytes = 64 * 1024;
/// Size in bytes of the pieces in which larger messages between two ranks travel.
inline constexpr std::uint64_t kMessagePieceBytes = 8 * 1024 * 1024;
/// Most bytes of copies in the heap that wait for their readers while an operation makes more of them.
inline constexpr std::uint64_t kMirroredBytes = kRoundBytes;
/// Size in bytes of the pieces in which partial sums travel round a ring.
inline constexpr std::uint64_t kRingPieceBytes = 256 * 1024;
/// Smallest output of one rank, in bytes, that a reduction writes past the cache (5 to 30% faster in bench/reduce_bench; slower
/// for smaller outputs).
inline constexpr std::uint64_t kStreamingBytes = 4 * 1024 * 1024;

}  // namespace tsprun::detail
