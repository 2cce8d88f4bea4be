// The table of transports. A rank goes through it from the top: each other rank is connected by the first kind of transport that
// may connect the two and reaches it. A new kind is a folder beside shm/, with an Endpoint and a Factory, and a row at the end of
// this file. Ranks need no more. To be chosen by an option and to be forecast, a kind must be named elsewhere, too:
// docs/how-to/add-something.md lists the places.
#pragma once

#include "transport/bootstrap/job_description.h"
#include "transport/endpoint.h"
#include "transport/shm/node_memory.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::bootstrap {
class StoreClient;
}

namespace tsprun::detail {

/// One kind of transport: what it claims, how it is made, and how its ends meet.
struct Factory {
  /// Distance between two ranks.
  enum class Distance : std::uint8_t {
    none,  ///< it is the rank itself
    node,  ///< it shares the node
    job    ///< it is on another node
  };

  /// Answer of a kind about two ranks before they have met. It depends on the job's options and on their distance alone, so both
  /// ends say the same.
  struct Claim {
    enum class Answer : std::uint8_t {
      no,             ///< it may not connect them
      if_reachable,   ///< it connects them if their addresses say that they can reach each other
      or_not_at_all,  ///< the same, but if they can't, the job is refused: an option demands this kind
      yes             ///< it connects them
    };
    Answer answer = Answer::no;
    /// Text that explains the answer. `no`: the reason; empty: reports print no reason. `if_reachable`: what is missing if the
    /// ranks can't reach each other. `or_not_at_all`: the option that demands this kind.
    std::string why{};
  };

  /// Parts from which a rank's transport is made.
  struct Setup {
    shm::NodeMemory& memory;
    const bootstrap::JobDescription& job;
    int local_rank;
    std::vector<int> peers;         ///< ranks of the world that it shall reach
    std::uint64_t timeout_ns;       ///< deadline of waits
    std::size_t heap_expected;      ///< bytes from the heap's start that this rank is likely to use
    bootstrap::StoreClient* store;  ///< null for a kind that needs none; borrowed, for the time of the call

    int rank() const { return static_cast<int>(job.first_rank) + local_rank; }
  };

  /// A transport that isn't connected yet.
  struct Made {
    std::unique_ptr<Endpoint> endpoint;
    std::vector<int> numbers;  ///< the number by which the endpoint knows each of Setup::peers
    /// Damages a message for an injected fault below the endpoint's own check of payloads (fault::DamageTransport::BelowCheck);
    /// null if it has no such check.
    std::function<void(LaneId lane)> damage_below_check{};
  };

  std::string_view name;  ///< as reports and options spell it, and the first part of its keys in the store
  Claim (*claim)(const bootstrap::JobDescription& job, Distance distance);
  /// Makes a rank's transport. Throws Error if it can't be made, naming what stood in the way.
  Made (*make)(const Setup& setup);

  // How ends meet by the job's store. Each text completes the error "waited for rank 3 …".
  std::string_view to_tell{};     ///< for its address: "to say where it listens"; empty: ends need no addresses and no store
  bool address_per_peer = false;  ///< an end has an address for each peer, under NAME/end/peer; else one for all, under NAME/end
  std::string_view
      to_link{};  ///< for the word that it is linked, under NAME/linked/end: "to connect its queue pairs"; empty: none
};

// The table: a row for each kind, in the order in which they are tried. The rows stand in the folders' factory.cpp.
namespace shm {
extern const Factory kFactory;
}
namespace verbs {
extern const Factory kFactory;
}
namespace tcp {
extern const Factory kFactory;
}
inline constexpr std::array kFactories = {&shm::kFactory, &verbs::kFactory, &tcp::kFactory};

}  // namespace tsprun::detail
