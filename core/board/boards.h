// The flight boards of all nodes that one process serves: usually one node, K in a tsprun with --nodes K. Every node's board
// shows the whole world: this class copies pages from the node where a rank lives to the others, and the first failure to all.
#pragma once

#include "core/board/flight_board.h"
#include "transport/shm/node_memory.h"

#include <deque>
#include <functional>
#include <span>
#include <vector>

namespace tsprun::detail {

/// The boards and the node memories that they are in. Used by one thread.
class Boards {
 public:
  /// Takes the nodes' memories; at least one.
  explicit Boards(std::vector<shm::NodeMemory> memories);

  /// Returns the number of nodes that this process serves.
  std::size_t size() const { return nodes_.size(); }
  /// Returns the memory of the node-th of them.
  shm::NodeMemory& memory(std::size_t node) { return nodes_[node].memory; }
  /// Returns the board that this process reads; it shows all ranks.
  const FlightBoard& board() const { return nodes_.front().board; }
  /// Returns the memory of the node on which the rank lives; null: another process serves its node.
  shm::NodeMemory* home(int rank);
  /// Returns the page that the rank itself writes. For ranks whose node another process serves: the page here
  /// that show() fills.
  RankPage& page(int rank);

  /// Returns true if a failure was written, or is being written, on any node.
  bool aborted() const;
  /// Returns the first failure that is complete on any node; cause none: there is none.
  Failure failure() const;
  /// Writes the failure on the boards of all nodes that have none yet.
  void abort(const Failure& failure);
  /// Replaces a failure that was written already by an earlier cause, and writes it where there is none yet.
  void correct(const Failure& failure);
  /// Takes back an abort that a rank began to write and never completed, on any node.
  void clear_half_written();
  /// Wakes all ranks here that wait.
  void ring_all();

  /// Copies the pages of ranks here to the other nodes here. `changed` is called for each page that differs from what it was last
  /// called with.
  void mirror(const std::function<void(int rank, std::span<const std::byte> page)>& changed = {});
  /// Shows a page of a rank that lives elsewhere. `clock_offset_ns` is added to its times. Precondition: `page` isn't longer than
  /// a RankPage.
  void show(int rank, std::span<const std::byte> page, std::int64_t clock_offset_ns);

 private:
  struct Node {
    shm::NodeMemory memory;
    FlightBoard board;
    int first;  ///< rank

    bool has(int rank) const { return rank >= first && rank < first + static_cast<int>(memory.layout().local_ranks); }
  };

  std::deque<Node> nodes_;                     // a deque doesn't move its elements: boards point at memories
  std::vector<std::vector<std::byte>> heard_;  // by rank: the page that `changed` was last called with
};

}  // namespace tsprun::detail
