// Which algorithm runs an operation: a table that can be printed and overridden; and the sizes at which the algorithms change
// their ways.
//
// The choice depends only on what all ranks of a group have in common (operation, bytes, group size, whether all members can view
// each other's memory, how they sit on nodes), so that all choose alike.
#pragma once

#include "core/collectives/op.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun {

enum class Algorithm : std::uint8_t {
  automatic,    ///< as the table says
  one_shot,     ///< all_reduce only: every rank sums everything itself, one round
  rooted,       ///< all_reduce and barrier only: by way of rank 0, 2(n−1) messages instead of n²
  direct,       ///< read the peers' memory
  ring,         ///< talk to neighbours only
  hierarchical  ///< direct within nodes, along rails between them
};
std::string_view name(Algorithm algorithm);
std::optional<Algorithm> algorithm_from_name(std::string_view text);

/// Whether an operation has a form for this algorithm. send, recv, send_recv, barrier and all_to_all have the direct one
/// only (where each rank has something else for every other, neighbours would only forward).
bool has_algorithm(Op op, Algorithm algorithm);
/// All that an operation has, for people: "direct, ring and hierarchical".
std::string algorithm_names(Op op);
/// Whether the hierarchical form of an operation adds in an order of its own.
bool reorders_sums(Op op);

/// What the choice asks of a group.
struct GroupShape {
  int ranks = 1;
  bool views = true;  ///< all members can view each other
  bool grid = false;  ///< it spans nodes, several members on each, as many on each, and those of a node can view each other
};

/// One line of the table; the first that fits wins.
struct ChoiceRow {
  Op op;
  std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max();  ///< of the whole buffer, as `bench` counts it
  int max_ranks = std::numeric_limits<int>::max();
  bool needs_views = false;  ///< only where all members can view each other
  Algorithm algorithm;       ///< a hierarchical row fits only groups that have a grid and, for sums, with reassociates()
};

class ChoiceTable {
 public:
  /// The built-in table.
  ChoiceTable();
  /// Built-in rows preceded by overrides: "all_reduce=ring,all_gather<64K=direct" (fewer than 64 KiB). Throws Error(refused)
  /// naming the part that is wrong and what would work.
  /// `reassociate`: sums may be added in an order that depends on which rank sits where.
  explicit ChoiceTable(std::string_view overrides, bool reassociate = false);

  Algorithm choose(Op op, std::uint64_t bytes, const GroupShape& group) const;
  bool reassociates() const { return reassociate_; }
  const std::vector<ChoiceRow>& rows() const { return rows_; }
  /// For people: one line a row.
  std::string print() const;

 private:
  std::vector<ChoiceRow> rows_;
  bool reassociate_ = false;
};

/// Above it, a direct all_reduce's second round costs less than what one_shot reads and adds in excess.
inline constexpr std::uint64_t kOneShotBytes = 16 * 1024;
/// Up to this many bytes a payload that is offered for viewing is copied to staging memory first, so that the operation is over
/// when the peers' data is there, without waiting for them to have read ours.
inline constexpr std::uint64_t kStagedBytes = 64 * 1024;
/// Staging memory of a stream: how far a rank that only sends may run ahead of its readers.
inline constexpr std::uint64_t kStagingRingBytes = 2 * kStagedBytes;
/// Up to this many bytes a payload for several peers is copied into each lane instead: cheaper than one staged copy whose readers
/// must be kept in mind.
inline constexpr std::uint64_t kCopiedBytes = 1024;
/// The same for a payload that only one peer reads: one copy either way, so as much as a lane takes.
inline constexpr std::uint64_t kCopiedOnceBytes = 8 * 1024;
/// Up to this many bytes a message is received into its place rather than viewed and copied.
inline constexpr std::uint64_t kReceivedBytes = 8 * 1024;
/// Work in one step of an operation, after which other streams have their turn; and the unit in which a reduced or forwarded
/// chunk is passed on. Small enough for the cache of a core.
inline constexpr std::uint64_t kSegmentBytes = 1024 * 1024;
/// Unit of the partial sums that travel round a ring.
inline constexpr std::uint64_t kRingPieceBytes = 256 * 1024;
/// From this output of one rank on sums are written past the cache (5 to 30% faster in bench/reduce_bench, slower below).
inline constexpr std::uint64_t kStreamingBytes = 4 * 1024 * 1024;

}  // namespace tsprun
