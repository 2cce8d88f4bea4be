// The table of transports. A rank goes through it from the top: each other rank is connected by the first kind of transport that
// may connect the two and reaches it. A new kind is a folder beside shm/, with an Endpoint and a Factory, and a row at the end of
// this file: from the row follow the choices of --intra and --inter, what is refused before ranks start, what `doctor` tries, and
// how it is forecast which ranks will be connected by which kind.
#pragma once

#include "transport/bootstrap/job_description.h"
#include "transport/endpoint.h"
#include "transport/payload_check.h"
#include "transport/shm/node_memory.h"

#include <array>
#include <cstddef>
#include <cstdint>
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

  /// Answer to whether a transport connects two ranks at some distance.
  enum class Use : std::uint8_t {
    never,
    if_reachable,  ///< if their addresses say that they can reach each other
    always
  };

  /// Answer of a kind about two ranks before they have met. It depends on the job's options and on their distance alone, so both
  /// ends say the same.
  struct Claim {
    enum class Answer : std::uint8_t {
      no,             ///< it may not connect them
      if_reachable,   ///< it connects them if they can reach each other
      or_not_at_all,  ///< the same, but if they can't, the job is refused: an option demands this kind
      yes             ///< it connects them
    };
    Answer answer = Answer::no;
    /// Text that explains the answer. `no`: the option that demands another kind; empty: it never does. `if_reachable`: what is
    /// missing if the ranks can't reach each other. `or_not_at_all`: the option that demands this kind.
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
    PayloadCheck& check;            ///< for a kind that checks payloads itself
    bootstrap::StoreClient* store;  ///< null for a kind that needs none; borrowed, for the time of the call

    int rank() const { return static_cast<int>(job.first_rank) + local_rank; }
  };

  /// A transport that isn't connected yet.
  struct Made {
    std::unique_ptr<Endpoint> endpoint;
    std::vector<int> numbers;  ///< the number by which the endpoint knows each of Setup::peers
  };

  std::string_view name;         ///< as reports and options spell it, and the first part of its keys in the store
  Use within_node = Use::never;  ///< between ranks of one node, and from a rank to itself
  Use between_nodes = Use::never;
  bool views = false;                ///< peers' memory can be read in place
  std::string_view missing{};        ///< if_reachable: the reason why another kind is used: "no RDMA"
  std::string_view device_option{};  ///< option that names a device of this kind: "--rdma"; empty: it has none
  /// Makes a rank's transport. Throws Error if it can't be made, naming what stood in the way.
  Made (*make)(const Setup& setup);
  /// Tries it on this machine: two ends of this process connect, and one sends the other kTrialBytes (trial.h). `device`: as
  /// typed for device_option; empty: any. Returns what was used. Throws Error that says why it failed.
  std::string (*attempt)(std::string_view device);

  // What a kind says that isn't possible on every machine; null: it is.
  std::string (*lacks)() =
      nullptr;  ///< what this machine lacks: "there is no RDMA device …"; empty: maybe nothing. Opens nothing
  /// Returns why so many ranks of this machine, each with so many peers, can't use it; empty if they can. Throws Error likewise,
  /// which begins with device_option if the device is to blame.
  std::string (*shortage)(std::string_view device, int ranks, int peers) = nullptr;

  // How ends meet by the job's store. Each text completes the error "waited for rank 3 …".
  std::string_view to_tell{};  ///< for its address: "to say where it listens"; empty: ends need no addresses and no store
  std::size_t own_bytes = 0;   ///< first bytes of an address that are for one peer; the rest is the same for all
  std::string_view
      to_link{};  ///< for the word that it is linked, under NAME/linked/end: "to connect its queue pairs"; empty: none

  Use use(Distance distance) const { return distance == Distance::job ? between_nodes : within_node; }
  /// Answers for two ranks. `demanded`: by the option for their distance; a rank reaches itself whatever is demanded.
  Claim claim(bootstrap::Demand demanded, Distance distance) const;
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

/// Returns the demand for the kind of this name, `automatic` if there is none.
bootstrap::Demand demand_for(std::string_view name);
/// Returns the kind that connects the ranks of one node under this demand.
const Factory& within_node(bootstrap::Demand intra);

}  // namespace tsprun::detail
