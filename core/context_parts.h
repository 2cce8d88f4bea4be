// All that a rank is made of, in the order in which it is put together: memory, heap, links, engine, and the communicator of the
// world. Only context.cpp and phantom.cpp make it.
#pragma once

#include "core/board/courier.h"
#include "core/board/peer_watch.h"
#include "core/collectives/communicator_state.h"
#include "core/collectives/staging.h"
#include "core/context.h"
#include "core/fault/rank_faults.h"
#include "core/links.h"
#include "core/memory/address_space.h"
#include "core/trace/program_trace.h"
#include "transport/verify/verify_transport.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <sys/types.h>
#include <unistd.h>
#include <vector>

namespace tsprun::detail {

/// Parts of a Context.
struct ContextParts {
  std::optional<shm::NodeMemory> owned_memory;
  shm::NodeMemory* memory;
  bootstrap::JobDescription job;
  int local_rank;
  FlightBoard board;
  AddressSpace imagined;  ///< a phantom's heap; empty for real ranks
  Heap heap;
  RankFaults faults;
  std::optional<PeerWatch> watch;
  std::uint64_t watched_ns = 0;      ///< when it last looked while ranks connected
  std::shared_ptr<const void> mail;  ///< the engine's, into which transports write until they are gone
  Links links;
  std::vector<std::unique_ptr<verify::VerifyTransport>> verified;  ///< with --verify, around transports that don't check
  Staging staging;
  Engine engine;
  std::string algorithms;
  ChoiceTable choices;
  std::optional<Communicator> world;
  std::unique_ptr<Courier> courier;     ///< carries news between nodes, see Joined; null: nobody does here
  std::unique_ptr<ProgramTrace> trace;  ///< until it is written; null: tsprun wants none
  int exceptions_at_start = std::uncaught_exceptions();
  bool left = false;                 ///< in good order
  bool parted = false;               ///< in whatever way
  const pid_t process = ::getpid();  ///< one that was forked from it must not leave for it

  /// Joins the job as local rank `rank`, on memory that this object then owns, or else that the caller does. `pids`: processes of
  /// the node's ranks that this one must watch itself; empty: a launcher does. A phantom has an address space, and no peers but
  /// those that are described.
  ContextParts(std::optional<shm::NodeMemory> owned, shm::NodeMemory* borrowed, int rank, const ContextOptions& options,
               const std::vector<int>& pids, AddressSpace of_phantom = {}, const std::vector<PhantomPeer>& phantom_peers = {});

  bool is_phantom() const { return !imagined.bytes.empty(); }
  int world_rank() const { return static_cast<int>(job.first_rank) + local_rank; }
  std::uint64_t timeout_ns() const;
  /// Leaves the job, once (parting.cpp). `completes`: completes first what was posted, whose buffers still exist.
  void part(bool completes);

  /// Returns a context that consists of these parts.
  static Context context(std::unique_ptr<ContextParts> parts) { return Context(std::move(parts)); }
  /// Returns the parts of a context.
  static ContextParts& of(const Context& context) { return *context.parts_; }

 private:
  FlightBoard joined(const shm::NodeMemory& node) const;
  void check_choices() const;
  std::span<std::byte> imagined_heap(std::uint64_t budget) const;
  int checked(int rank) const;
  std::size_t own_cores() const;
  void commit(std::size_t offset, std::size_t bytes);
  bool release(std::size_t offset, std::size_t bytes);
  std::vector<Route> finished(std::vector<Route> routes, bool verify);
  std::vector<Route> with_phantoms(std::vector<Route> routes, const std::vector<PhantomPeer>& peers) const;
  void throw_if_aborted() const;
  bool part_in_order(bool completes);
  bool finish_posted(std::uint64_t deadline_ns);
  void close_links(std::uint64_t deadline_ns);
  struct Look {
    std::uint64_t sign_ns = 0;
    int count = 0;
  };
  void wake_if_last() const;
  bool is_awaited(std::vector<Look>& looks);
  void await_others(std::uint64_t deadline_ns);
  void check_unreceived();
  void look_while_connecting();
};

}  // namespace tsprun::detail
