// A decorator that makes any transport look like a slower link: every message arrives later by its bytes over a bandwidth. A
// delay costs no CPU time, so one can tell communication that a schedule hides behind computation from communication that it
// waits for.
//
// The link into this rank from each peer carries one message at a time, whatever its stream; a message's time on the link
// begins when this end sees it. Only the receiving side delays, by its own clock. Single messages are delayed further if the
// rank's Strikes say so.
#pragma once

#include "transport/fault/strikes.h"
#include "transport/forwarding_transport.h"

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace tsprun::detail::fault {

/// A fault `slow`: a lower speed of the link from one peer.
struct SlowLink {
  int peer = -1;            ///< peer, as the transport numbers it
  int from = -1;            ///< the same peer's rank in the world
  double bytes_per_ns = 0;  ///< 10⁹ bytes per second are bytes per nanosecond
  std::size_t fault = 0;    ///< number among all faults of the job
};

/// Delays the messages that arrive at this rank.
class DelayTransport final : public ForwardingTransport {
 public:
  /// Wraps `inner`. All links have this speed (0: no limit), those in `slow` the lower of both. `strikes` (null: none) says which
  /// messages come later still; `worlds[p]` is the world's rank of peer p. `inner` and `strikes` must outlive this object.
  DelayTransport(Transport& inner, double bytes_per_ns, std::vector<SlowLink> slow = {}, Strikes* strikes = nullptr,
                 std::vector<int> worlds = {})
      : ForwardingTransport(inner),
        bytes_per_ns_(bytes_per_ns),
        slow_(std::move(slow)),
        strikes_(strikes),
        worlds_(std::move(worlds)) {}

  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override {
    return expect(lane, envelope, inner().receive(lane, envelope, into), into.size());
  }
  Ticket view(LaneId lane, const Envelope& envelope, std::size_t bytes) override {
    return expect(lane, envelope, inner().view(lane, envelope, bytes), bytes);
  }
  Outcome test_receive(LaneId lane, Ticket ticket) override;
  bool progress() override;
  std::uint64_t arm() override;

  /// Returns true while a message that has already arrived from this peer is held back. The peer may then have ended although
  /// its messages are still to be handed over.
  bool withholds(int peer) const;

 private:
  /// A message for which a receive is posted and that wasn't handed over yet.
  struct Expected {
    Ticket ticket;
    std::size_t bytes;
    std::uint64_t late_ns;       // delay that strikes add
    std::uint64_t ready_ns = 0;  // time at which it may be handed over; 0: not seen yet
  };
  Ticket expect(LaneId lane, const Envelope& envelope, Ticket ticket, std::size_t bytes);
  Outcome see(LaneId lane, Expected& message);
  double speed_of(LaneId lane, std::size_t bytes) const;

  double bytes_per_ns_;
  std::vector<SlowLink> slow_;
  Strikes* strikes_;
  std::vector<int> worlds_;
  std::map<LaneId, std::deque<Expected>> lanes_;  // in the order of tickets
  std::map<int, std::uint64_t> link_free_ns_;     // by peer
};

}  // namespace tsprun::detail::fault
