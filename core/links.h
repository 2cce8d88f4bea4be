// The ways of one rank to all others: shared memory within its node, RDMA verbs or TCP to other nodes. Who shares no memory finds
// each other through the job's store, where each rank also leaves word of what it chose and why (live/way/RANK):
//
//   verbs/A/B   what B needs to connect to A; or why A has no RDMA device
//   verbs/A     A's queue pairs are connected: probes may be sent
//   tcp/A       where A listens
//   live/way/A  A's choices: lines of KIND, tab, why, tab, ranks with commas
//
// Both ends judge the same two addresses by the same rule, so they choose alike. While a rank waits for another one here, its
// page of the flight board says for whom: what is late is blamed on the rank at the root of the waits, as in operations.
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

struct LinkOptions {
  std::uint64_t timeout_ns = 30'000'000'000;
  std::size_t heap_expected = ~std::size_t{0};  ///< how far into its reservation this rank's heap is likely to reach
  double gbps = 0;                              ///< makes links look as slow, in 10⁹ bytes per second; 0: as they are
  std::vector<fault::Spec> faults;              ///< of the whole job: messages to this rank are delayed or slowed as they say
  fault::Strikes* strikes = nullptr;            ///< what befalls messages to this rank; null: nothing; borrowed
  std::function<void()> check;                  ///< called while ranks are waited for; throws if the job is over
};

class Links {
 public:
  /// Connects to all ranks. Devices are opened here: never before a fork. `memory` must outlive the links. Throws Error(refused)
  /// naming node, rank and cause where --inter verbs or --rdma can't be had, Error(stalled) naming who didn't come or kept the
  /// others from coming, Error(disconnected); the last two are then the job's failure, on the board.
  Links(shm::NodeMemory& memory, int local_rank, LinkOptions options);

  /// By rank of the world; this rank's own entry leads to itself over shm. No transport: there is no store to meet at.
  std::vector<Route> routes();
  /// A part of the heap that is used from now on. Throws Error(out_of_memory) with the limit that stands in the way.
  void register_memory(std::span<std::byte> memory);
  /// Whether a NIC holds on to what register_memory() was told of: to those pages, whatever becomes of the places they lie at.
  bool registers_memory() const { return verbs_ != nullptr; }
  /// By transport in use, shm first.
  std::vector<LinkTraffic> traffic() const;
  /// Drives the end in good order: true once all that this rank has sent has arrived.
  bool close();

 private:
  /// Ranks that are reached the same way for the same reason.
  struct Way {
    std::string kind;
    std::string why;
    std::vector<int> ranks;
  };

  int rank() const { return static_cast<int>(memory_->layout().first_rank) + local_rank_; }
  bool is_here(int rank) const;
  bool shares_memory(int rank) const { return rank == this->rank() || (memory_->layout().share != 0 && is_here(rank)); }
  /// A transport behind those of its decorators that there is a use for.
  struct Decorated {
    std::optional<fault::DelayTransport> slow;
    std::optional<fault::DamageTransport> damaged;

    Transport* outermost(Transport* inner) {
      if (damaged) return &*damaged;
      return slow ? static_cast<Transport*>(&*slow) : inner;
    }
  };
  void decorate(Decorated& decorated, Transport* inner);
  /// The transport that leads to a rank, and the rank's number in it; null: there is no way.
  Route inner_route(int rank);
  void note(std::string_view kind, const std::string& why, int rank);
  void connect();
  std::vector<int> choose_verbs(bootstrap::StoreClient& client, const std::vector<int>& far);
  void tell(bootstrap::StoreClient& client) const;
  void connect_verbs(bootstrap::StoreClient& client);
  void connect_tcp(bootstrap::StoreClient& client, const std::vector<int>& peers);
  /// What a peer left in the store, as soon as it is there.
  std::vector<std::byte> ask(bootstrap::StoreClient& client, const std::string& key, int peer, const std::string& what) const;
  /// Waits until `connected` says so of every peer; `why_broken`: what is wrong with it, empty if nothing.
  void await(const std::vector<int>& peers, std::string_view transport, const std::function<bool(int rank)>& connected,
             const std::function<std::string(int rank)>& why_broken) const;
  /// On the board: for whom this rank waits; -1: nobody.
  void note_wait(int peer) const;
  /// Ends the job: the way to `peer` can't be had, which has been tried since `began_ns`.
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
