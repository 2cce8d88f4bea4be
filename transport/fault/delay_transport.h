// A decorator that makes any transport look like a slower link: every message arrives later by a latency and by its bytes over a
// bandwidth. A delay costs no CPU, so what a schedule hides behind computation can be told from what it waits for.
//
// The link into this rank from each peer carries one message at a time, whatever its stream; its time begins when the message is
// seen. Only arrivals are delayed: the receiving side decides, and no clock but its own is asked.
#pragma once

#include "transport/fault/spec.h"
#include "transport/fault/strikes.h"
#include "transport/forwarding_transport.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace tsp::fault {

struct LinkSpeed {
  double bytes_per_ns = 0;  ///< 0: no limit
  std::uint64_t latency_ns = 0;
};

/// A fault `delay` or `slow` of the messages from one peer.
struct LinkFault {
  int peer;  ///< as the transport numbers it
  Spec spec;
  std::size_t number = 0;  ///< among all of the job
};

class DelayTransport final : public ForwardingTransport {
 public:
  /// `inner` must outlive it. All links have this speed; messages that a fault strikes are slower or later still. Which those are
  /// depends on (seed, from, to, stream, number of the message in its lane) alone, not on the order in which streams move on.
  DelayTransport(Transport& inner, const LinkSpeed& speed, std::vector<LinkFault> faults = {})
      : ForwardingTransport(inner), speed_(speed), faults_(std::move(faults)) {}

  Ticket receive_put(LaneId lane, const Envelope& envelope, std::span<const std::byte> where) override {
    return expect(lane, inner().receive_put(lane, envelope, where), where.size());
  }
  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override {
    return expect(lane, inner().receive(lane, envelope, into), into.size());
  }
  Ticket view(LaneId lane, const Envelope& envelope, std::size_t bytes) override {
    return expect(lane, inner().view(lane, envelope, bytes), bytes);
  }
  Outcome test_receive(LaneId lane, Ticket ticket) override;
  bool withholds(int peer) const override;
  bool progress() override;
  std::uint64_t arm() override;

  /// Hears of every message that a fault makes late.
  std::function<void(const Blow&)> on_blow;

 private:
  /// A message that was asked for and hasn't been handed over yet.
  struct Expected {
    Ticket ticket;
    std::size_t bytes;
    std::uint64_t number;        // in its lane, from 1
    std::uint64_t ready_ns = 0;  // 0: not seen yet
  };
  struct Lane {
    LaneId id;
    std::uint64_t messages = 0;     // expected so far
    std::deque<Expected> expected;  // in the order of tickets
  };

  Ticket expect(LaneId lane, Ticket ticket, std::size_t bytes);
  void see(Lane& lane, Expected& message);
  LinkSpeed speed_for(LaneId lane, const Expected& message) const;

  LinkSpeed speed_;
  std::vector<LinkFault> faults_;
  std::map<std::pair<int, Stream>, Lane> lanes_;
  std::map<int, std::uint64_t> link_free_ns_;  // by peer
};

}  // namespace tsp::fault
