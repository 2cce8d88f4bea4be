// A rank that is played in virtual time: an engine, a heap without memory and a program, but no process, and nothing that
// computes.
#pragma once

#include "core/collectives/communicator_state.h"
#include "core/collectives/staging.h"
#include "core/memory/address_space.h"
#include "core/memory/heap.h"
#include "core/program/program.h"
#include "core/streams/engine.h"
#include "transport/shm/node_memory.h"
#include "transport/sim/sim_transport.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail {

/// One played rank. It posts what its program says to an engine whose transport is sim's; the player says when.
class PlayedRank {
 public:
  /// Makes played rank `rank` of the world. `memory` holds the flight board of all of them. All references are borrowed.
  PlayedRank(sim::SimWorld& world, int rank, const Program& program, shm::NodeMemory& memory);
  PlayedRank(const PlayedRank&) = delete;
  PlayedRank& operator=(const PlayedRank&) = delete;

  Engine& engine() { return engine_; }
  const Program& program() const { return program_; }
  /// Posts the operation of an item of kind post or call.
  void post(const ProgramItem& item);
  /// Returns true if the operation with this number on its stream is complete, and gives back what it holds then; numbers count
  /// from the program's beginning.
  bool is_complete(std::uint8_t stream, std::uint64_t number);
  /// Returns the same, but gives nothing back.
  bool has_completed(std::uint8_t stream, std::uint64_t number) const;
  /// Begins the program again.
  void begin_again();
  /// Returns what the rank waits for, in words: "all_gather #3 on stream weights, for rank 2".
  std::string describe_wait(std::uint8_t stream, std::uint64_t number);

 private:
  /// A group of the program, with the numbers of its operations.
  struct Member {
    std::shared_ptr<CommunicatorState> state;
    bool folded = false;  // it has ranks of other units than the played one
    bool circle = true;   // see is_circle()
    std::uint32_t sequence[kQueues] = {};
    std::map<std::uint64_t, std::uint32_t> messages;  // by other rank, stream and direction
  };
  Member& member_of(std::uint64_t group);

  const Program& program_;
  const sim::UnitGrid& grid_;
  AddressSpace imagined_;
  Heap heap_;
  Staging staging_;
  ChoiceTable choices_;
  std::map<std::uint64_t, Member> groups_;  // outlive the engine's operations
  Engine engine_;
  std::vector<Work> posted_[kQueues];
  std::uint64_t posted_before_[kQueues] = {};  // by the program when it was played before
};

}  // namespace tsprun::detail
