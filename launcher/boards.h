// The flight boards of all nodes that one tsprun serves: usually one; with --nodes K, K. Every node's board shows the whole
// world: this class copies pages from the node where a rank lives to the others, and the first failure to all.
#pragma once

#include "core/board/flight_board.h"
#include "transport/shm/node_memory.h"

#include <deque>
#include <functional>
#include <span>
#include <vector>

namespace tsprun::launcher {

class Boards {
 public:
  explicit Boards(std::vector<shm::NodeMemory> memories);

  std::size_t size() const { return nodes_.size(); }
  shm::NodeMemory& memory(std::size_t node) { return nodes_[node].memory; }
  /// The board that this tsprun reads: it shows all ranks.
  const FlightBoard& board() const { return nodes_.front().board; }
  /// The node here on which the rank lives; none: it lives under another tsprun.
  shm::NodeMemory* home(int rank);
  /// The page that the rank itself writes.
  RankPage& page(int rank) { return nodes_[index_of(rank)].board.page(rank); }

  bool aborted() const;
  /// The first failure that is complete on any node.
  Failure failure() const;
  /// Tells all nodes.
  void abort(const Failure& failure);
  /// Puts an earlier cause in the place of a failure that is told already; tells those that weren't.
  void correct(const Failure& failure);
  /// An abort that a rank began to write and never completed is taken back, on any node.
  void clear_half_written();
  void ring_all();

  /// Copies the pages of ranks here to the other nodes here; `changed` hears of those that differ from what it heard last.
  void mirror(const std::function<void(int rank, std::span<const std::byte> page)>& changed = {});
  /// A page of a rank that lives elsewhere. `clock_offset_ns`: what to add to its times. Precondition: not longer than a
  /// RankPage.
  void show(int rank, std::span<const std::byte> page, std::int64_t clock_offset_ns);

 private:
  struct Node {
    shm::NodeMemory memory;
    FlightBoard board;
  };
  std::size_t index_of(int rank) const;

  std::deque<Node> nodes_;                     // never moved: boards point at memories
  std::vector<std::vector<std::byte>> heard_;  // by rank: what `changed` heard last
};

}  // namespace tsprun::launcher
