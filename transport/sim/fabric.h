// The links of a cluster that isn't there, in virtual time. A transfer goes over one link, or out of one port and into another;
// between nodes maybe up from the sender's leaf switch, through the spine and down to the receiver's leaf on its way.
//
// A link carries one quantum of a transfer at a time. Transfers that share a link take turns, quantum by quantum, so each gets
// its share (one whose later links are free goes first); of a transfer one quantum is on its way at a time. Behind its first link
// a quantum goes on at once (cut-through): over two idle links of equal speed it takes as long as over one. When a later link is
// busy it waits there, and its transfer with it. Only a spine that limits is shared byte by byte (shared_link.h).
#pragma once

#include "transport/sim/link_rates.h"
#include "transport/sim/shared_link.h"
#include "transport/sim/timeline.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::sim {

/// A directed link, or one direction of a port.
struct Link {
  std::string_view kind;    ///< what reports call it, a literal: "NIC out"
  double bytes_per_s = 0;   ///< infinite: takes no time
  double busy_seconds = 0;  ///< time in which it carried something, so far
  double bytes = 0;         ///< carried so far
  double times = 1;         ///< bytes that it carries for each byte of a played rank: units share it that one stands for
};

/// Links between ranks, and their speed.
struct Way {
  static constexpr std::size_t kMost = 5;
  std::array<std::uint32_t, kMost> links{};  ///< numbers, in the order in which bytes cross them
  std::uint32_t hops = 0;                    ///< number of links
  double latency = 0;                        ///< seconds that each message takes besides its bytes
  double stretch = 1;                        ///< how many times longer its bytes take on the first and on the last of them
};

/// A pair of ranks whose bytes take longer, in both directions.
struct SlowWay {
  int one = 0;
  int other = 0;
  double factor = 1;  ///< how many times longer
};

/// Shape of a cluster: equal nodes, whose GPUs are ranks in order.
struct FabricShape {
  int ranks = 1;
  int ranks_per_node = 1;
  bool links_within = false;  ///< true: a link between every two GPUs of a node; false: a switch, with a port each
  double within_bytes_per_s = 0;
  double within_latency = 0;
  int nics_per_node = 1;  ///< GPU i of a node uses NIC i modulo this number
  double nic_bytes_per_s = 0;
  double nic_latency = 0;
  double rail_crossing = 1;  ///< stretch of bytes between NICs of different numbers
  int nodes_per_leaf = 0;  ///< nodes whose NICs are on one leaf switch; 0: nothing is known of switches, and nothing limits them
  bool leaf_per_rail = false;    ///< NICs of each number have leaves of their own
  double leaf_bytes_per_s = 0;   ///< of all links of a leaf to the spine, in each direction
  double spine_bytes_per_s = 0;  ///< of all that leaves go through; infinite: only they limit it
  double spine_latency = 0;      ///< seconds that a message from one leaf to another takes besides
  int units = 1;                 ///< of which the fabric has one, all doing the same at the same time (folding)
  std::vector<SlowWay> slow{};
};

/// All links, and the transfers on them.
class Fabric final : public Handler {
 public:
  /// Makes the links of a cluster's first `ranks` ranks; `timeline` is borrowed.
  Fabric(Timeline& timeline, const FabricShape& shape);

  /// Returns the way from a rank to another, different one. `to` may be beyond the cluster's ranks: it then stands for the rank
  /// that has its place in a cluster like this one behind this one (folding, see sim_transport.h).
  Way way(int from, int to) const;
  /// Sends `bytes` over a way; when the last has arrived, `handler` hears of `what`.
  void send(const Way& way, double bytes, Handler& handler, std::uint64_t what);
  const std::vector<Link>& links() const { return links_; }
  /// Returns what a link is called among others of its kind: "link within the node 0 to 1", "NIC out 3".
  std::string describe(std::size_t link) const;
  /// Notes in `rates` what links carry when, from now on; it has an entry for each link. Borrowed; null: in none.
  void observe(LinkRates* rates) { rates_ = rates; }

 private:
  struct Transfer {
    Way way;
    double left = 0;
    double quantum = 0;
    double bytes = 0;       // of the quantum that is on its way
    std::uint32_t hop = 0;  // the link of the way that it has got to
    double there_at = 0;    // when it will have crossed the links so far
    double came_at = 0;     // to the spine that all share
    Handler* handler = nullptr;
    std::uint64_t what = 0;
  };
  struct Port {
    double carries_until = 0;           // a quantum, as a first link
    bool comes_back = false;            // what it carries has another quantum, and comes for it then
    double free_at = 0;                 // as a later link
    std::deque<std::uint32_t> waiting;  // transfers; if any, an event comes at carries_until
  };

  Way usual_way(int from, int to) const;
  void happen(std::uint64_t what) override;
  void enter(std::uint32_t transfer);
  void await_link(std::uint32_t link);
  void carry(std::uint32_t transfer);
  double seconds_on_link(const Transfer& transfer) const;
  void note(const Transfer& transfer, double begins, double seconds);
  void go_on(std::uint32_t transfer, double there, double since = 0);
  void free_link(std::uint32_t link);
  void come_to_spine(std::uint32_t transfer, double there);
  void await_spine();
  void leave_spine();
  std::uint32_t add_link(std::string_view kind, double bytes_per_s);
  std::uint32_t nic(int rank) const;
  std::uint32_t leaf(int rank) const;

  Timeline& timeline_;
  FabricShape shape_;
  std::vector<Link> links_;
  std::vector<Port> ports_;
  std::vector<Transfer> transfers_;
  std::vector<std::uint32_t> unused_;  // entries of transfers_
  std::uint32_t nics_out_ = 0;         // number of the first NIC's link
  std::uint32_t nics_in_ = 0;
  std::uint32_t leaves_up_ = 0;
  std::uint32_t leaves_down_ = 0;
  std::uint32_t spine_ = 0;
  std::optional<SharedLink> shared_spine_;  // if it limits
  std::uint64_t spine_event_ = 0;           // number of the event that counts
  double spine_event_at_ = 0;
  LinkRates* rates_ = nullptr;
};

}  // namespace tsprun::detail::sim
