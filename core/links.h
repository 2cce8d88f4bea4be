// Connects one rank to all others: shared memory within its node, RDMA verbs or TCP to other nodes. Ranks that don't share memory
// exchange addresses through the job's key-value store. Rank A writes these keys:
//
//   verbs/A/B   A's address for B to connect to, or the reason why A has no RDMA device
//   verbs/A     A's queue pairs are connected: probes may be sent to A
//   tcp/A       the address on which A listens
//   live/way/A  the transports that A chose: lines of transport, tab, reason, tab, ranks separated by commas
//
// Both ends apply the same rule to the same two addresses, so they choose the same transport. While a rank waits for another one
// here, its page of the flight board names that rank; if it is late, the error names the rank at the root of the chain of waits,
// as it does in operations.
#pragma once

#include "core/board/flight_board.h"
#include "core/link_traffic.h"
#include "core/streams/engine.h"
#include "transport/fault/damage_transport.h"
#include "transport/fault/delay_transport.h"
#include "transport/fault/spec.h"
#include "transport/shm/node_memory.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/verbs/verbs_transport.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::bootstrap {
class StoreClient;
}

namespace tsprun {

/// Options of Links.
struct LinkOptions {
  std::uint64_t timeout_ns = 30'000'000'000;    ///< how long one rank is waited for
  std::size_t heap_expected = ~std::size_t{0};  ///< bytes from the heap's start that this rank is likely to use
  double gbps = 0;                              ///< slows links down to this speed, in 10⁹ bytes per second; 0: full speed
  std::vector<fault::Spec> faults;              ///< all faults of the job; those that delay or slow messages to this rank apply
  fault::Strikes* strikes = nullptr;            ///< faults to inject into messages to this rank; null: none; borrowed
  std::function<void()> check;                  ///< called while ranks are waited for; throws if the job is over
};

/// The transports of one rank, connected to all other ranks, with the decorators that injected faults need.
class Links {
 public:
  /// Connects to all ranks. Opens RDMA devices, so the process must not fork afterwards. `memory` must outlive the links. Throws
  /// Error(refused) naming node, rank and cause if --inter verbs or --rdma can't be satisfied, Error(stalled) naming the rank
  /// that didn't come or that kept the others from coming, and Error(disconnected). The last two are also written to the flight
  /// board as the failure of the job.
  Links(shm::NodeMemory& memory, int local_rank, LinkOptions options);

  /// Returns the route to each rank of the world; this rank's own entry leads to itself over shm. A route without a transport
  /// means that the rank is unreachable because the job has no store.
  std::vector<Route> routes();
  /// Registers a part of the heap with the NIC, before it is used; does nothing without verbs. Throws Error(out_of_memory) naming
  /// the limit that was hit.
  void register_memory(std::span<std::byte> memory);
  /// Returns true if a NIC has heap memory registered. It keeps using the pages that it pinned then, even if other pages are
  /// mapped at their addresses later, so such memory must not be given back.
  bool registers_memory() const { return verbs_ != nullptr; }
  /// Returns the counters of each transport in use, shm first.
  std::vector<LinkTraffic> traffic() const;
  /// Makes progress on closing the connections; returns true once everything that this rank sent has arrived. Call until it does.
  bool close();

 private:
  /// Ranks that are reached over the same transport for the same reason.
  struct Way {
    std::string kind;
    std::string why;
    std::vector<int> ranks;
  };

  int rank() const { return static_cast<int>(memory_->layout().first_rank) + local_rank_; }
  bool is_here(int rank) const;
  bool shares_memory(int rank) const { return rank == this->rank() || (memory_->layout().share != 0 && is_here(rank)); }
  /// Decorators around one transport; only those that the options need exist.
  struct Decorated {
    std::optional<fault::DelayTransport> slow;
    std::optional<fault::DamageTransport> damaged;

    Transport* outermost(Transport* inner) {
      if (damaged) return &*damaged;
      return slow ? static_cast<Transport*>(&*slow) : inner;
    }
  };
  void decorate(Decorated& decorated, Transport* inner, fault::DamageTransport::BelowCheck below_check = {});
  /// Returns the undecorated transport that leads to a rank and the rank's number in it; null if there is none.
  Route inner_route(int rank);
  void note(std::string_view kind, const std::string& why, int rank);
  void connect();
  std::vector<int> choose_verbs(bootstrap::StoreClient& client, const std::vector<int>& far);
  void tell(bootstrap::StoreClient& client) const;
  void connect_verbs(bootstrap::StoreClient& client);
  void connect_tcp(bootstrap::StoreClient& client, const std::vector<int>& peers);
  /// Waits until `peer` has written `key` to the store and returns the value; `what` describes it for errors.
  std::vector<std::byte> ask(bootstrap::StoreClient& client, const std::string& key, int peer, const std::string& what) const;
  /// Waits until connected(rank) is true for every peer. `why_broken` returns what is wrong with a connection, or an empty text.
  void await(const std::vector<int>& peers, std::string_view transport, const std::function<bool(int rank)>& connected,
             const std::function<std::string(int rank)>& why_broken) const;
  /// Writes to the flight board for which rank this one waits; -1: none.
  void note_wait(int peer) const;
  /// Ends the job because `peer` can't be reached, which this rank has tried since `began_ns`.
  [[noreturn]] void fail(Cause cause, int peer, const std::string& what, std::uint64_t began_ns) const;

  shm::NodeMemory* memory_;
  FlightBoard board_;
  int local_rank_;
  LinkOptions options_;
  std::uint64_t began_ns_ = 0;  ///< when this rank began to connect
  shm::ShmTransport shm_;
  std::unique_ptr<verbs::VerbsTransport> verbs_;
  std::unique_ptr<tcp::TcpTransport> tcp_;
  Decorated around_shm_;
  Decorated around_verbs_;
  Decorated around_tcp_;
  std::vector<std::pair<int, int>> verbs_peers_;  ///< rank of the world, number in the transport
  std::vector<Way> ways_;
};

}  // namespace tsprun
