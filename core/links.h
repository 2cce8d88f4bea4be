// Connects one rank to all others, each by the first kind of transport in the table (transport/factory.h) that reaches it. Ranks
// that don't share memory exchange addresses through the job's key-value store. Rank A writes these keys:
//
//   NAME/A      A's address, which may say why A can't be reached: what is for one rank alone (Factory::own_bytes, often none)
//               for each rank of the world, one after another, then what is for all
//   NAME/linked/A, NAME/probed/A
//               by a transport whose ends tell each other how far they are: A is linked with all peers, and bytes may be sent to
//               it; bytes have reached all peers. The value says with which peers it failed, and why (link_words.h)
//   live/way/A  the transports that A chose: lines of transport, tab, reason, tab, ranks separated by commas
//
// Of the keys that end in A alone, a rank reads those of all its peers by one request (bootstrap/gathering.h).
//
// Both ends apply the same rule to the same two addresses, so they choose the same transport. If linking or probing fails at
// either end, both read that, and the pair is left to the next kind unless an option demands this one. While a rank waits for
// another one here, its page of the flight board names that rank; if it is late, the error names the rank at the root of the
// chain of waits, as it does in operations.
#pragma once

#include "core/board/flight_board.h"
#include "core/streams/engine.h"
#include "transport/bootstrap/job_description.h"
#include "transport/factory.h"
#include "transport/fault/damage_transport.h"
#include "transport/fault/delay_transport.h"
#include "transport/fault/spec.h"
#include "transport/shm/node_memory.h"
#include "tsprun/types.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::bootstrap {
class StoreClient;
struct GatherCut;
}  // namespace tsprun::detail::bootstrap

namespace tsprun::detail {

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
  Links(shm::NodeMemory& memory, const bootstrap::JobDescription& job, int local_rank, LinkOptions options);

  /// Returns the route to each rank of the world, this rank's own included. A route without a transport means that the rank is
  /// unreachable because the job has no store.
  std::vector<Route> routes() const;
  /// Registers a part of the heap with the transports, before it is used. Throws Error(out_of_memory) naming the limit that was
  /// hit.
  void register_memory(std::span<std::byte> memory);
  /// Returns what register_memory(memory) would keep in place: at least `memory` (Endpoint::registration_of()).
  std::span<std::byte> registration_of(std::span<std::byte> memory) const;
  /// Returns true if a NIC has heap memory registered. It keeps using the pages that it pinned then, even if other pages are
  /// mapped at their addresses later, so such memory must not be given back.
  bool pins_memory() const;
  /// Returns the counters of each transport in use, in the order of the table.
  std::vector<LinkTraffic> traffic() const;
  /// Makes progress on closing the connections; returns true once everything that this rank sent has arrived, except
  /// at ranks that have left. Call until it does.
  bool close();
  /// Returns true if the way to a rank tells that it sends nothing more; false: it doesn't, or the way can't tell.
  bool parted(int rank) const;
  /// A message that has arrived here and that nobody has asked for.
  struct Unreceived {
    int from = -1;  ///< world rank
    Stream stream = Stream::control;
    Found found;
  };
  /// Takes in all that has arrived, and returns the first such message of each lane.
  std::vector<Unreceived> unreceived();

 private:
  /// A rank for which a transport is sought.
  struct Unreached {
    int rank;
    std::string why;         ///< why the transports tried so far don't lead to it
    Factory::Claim claim{};  ///< of the kind that is tried
  };
  /// A rank to which a transport leads.
  struct Peer {
    int rank;
    int number;   ///< its number in the transport
    bool begun;   ///< connect() was called
    bool free{};  ///< another kind may lead to it, if this one doesn't
  };
  /// A transport in use, with the decorators that the options need around it.
  struct Used {
    const Factory* factory = nullptr;
    fault::DamagedArrivals arrivals;  ///< the transport's own check of payloads
    Factory::Made made;
    std::vector<Peer> peers;
    std::map<int, std::string> why;   ///< by rank: why this kind leads there, until it is noted
    std::map<int, std::string> lost;  ///< by rank: why it doesn't after all, as this end or the other has found
    std::optional<fault::DelayTransport> slow;
    std::optional<fault::DamageTransport> damaged;

    Endpoint& endpoint() const { return *made.endpoint; }
    Transport* outermost();
  };
  /// Ranks that are reached over the same transport for the same reason.
  struct LinkChoice {
    std::string_view kind;
    std::string why;
    std::vector<int> ranks;
  };

  int rank() const { return static_cast<int>(job_.first_rank) + local_rank_; }
  Factory::Distance distance(int rank) const;
  void decorate(Used& used);
  void note(std::string_view kind, const std::string& why, int rank);
  void connect();
  std::vector<Unreached> accepted(const Factory& factory, std::vector<Unreached>& left) const;
  void leave(const Unreached& candidate, const std::string& why, std::vector<Unreached>& left) const;
  void choose(const Factory& factory, bootstrap::StoreClient* client, const std::vector<Unreached>& candidates,
              std::vector<Unreached>& left);
  void publish(const Used& used, bootstrap::StoreClient& client, const std::vector<int>& ranks) const;
  void tell(bootstrap::StoreClient& client) const;
  void meet(Used& used, bootstrap::StoreClient& client);
  /// Links and probes a transport whose ends tell each other how far they are; moves the peers with whom that failed to `left`.
  void try_out(Used& used, bootstrap::StoreClient& client, std::vector<Unreached>& left);
  /// Tells the peers with which of them this end has failed, and learns the same from each.
  void compare_notes(Used& used, bootstrap::StoreClient& client, std::string_view stage) const;
  /// Waits for the addresses by which this rank reaches these peers; returns them by rank.
  std::map<int, std::vector<std::byte>> ask_addresses(const Used& used, bootstrap::StoreClient& client,
                                                      const std::vector<int>& peers) const;
  /// Waits until all these peers have written `prefix`RANK to the store and returns the values by rank; `what` says for errors
  /// what each was expected to do. `cut`: the part of each value that is wanted.
  std::map<int, std::vector<std::byte>> ask_all(bootstrap::StoreClient& client, const std::string& prefix,
                                                const std::vector<int>& peers, std::string_view what,
                                                const bootstrap::GatherCut& cut) const;
  /// Waits until done(number) is true for every peer of a transport that isn't lost. A peer that another kind may reach is lost
  /// if it fails, or if `patience_ns` pass.
  void await(Used& used, const std::function<bool(int number)>& done, std::uint64_t patience_ns) const;
  /// Writes to the flight board for which rank this one waits; -1: none.
  void note_wait(int peer) const;
  /// Ends the job because `peer` can't be reached, which this rank has tried since `began_ns`.
  [[noreturn]] void fail(Cause cause, int peer, const std::string& what, std::uint64_t began_ns) const;

  shm::NodeMemory* memory_;
  bootstrap::JobDescription job_;
  FlightBoard board_;
  int local_rank_;
  LinkOptions options_;
  std::uint64_t began_ns_ = 0;               ///< when this rank began to connect
  std::vector<std::unique_ptr<Used>> used_;  ///< in the order of the table
  std::vector<LinkChoice> choices_;
};

}  // namespace tsprun::detail
