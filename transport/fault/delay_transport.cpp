// Computes when each message that has arrived may be handed over.
#include "transport/fault/delay_transport.h"

#include "transport/posix.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace tsprun::detail::fault {

/// Returns the speed of a link in bytes per nanosecond, 0: no limit. If several speeds apply, the lowest counts.
double DelayTransport::speed_of(LaneId lane, std::size_t bytes) const {
  double speed = bytes_per_ns_;
  for (const SlowLink& link : slow_) {
    if (link.peer != lane.peer) continue;
    if (speed <= 0 || link.bytes_per_ns < speed) speed = link.bytes_per_ns;
    if (strikes_ != nullptr && strikes_->on_event)
      strikes_->on_event({link.fault, lane.stream, link.from, bytes, "it comes more slowly"});
  }
  return speed;
}

Ticket DelayTransport::expect(LaneId lane, const Envelope& envelope, Ticket ticket, std::size_t bytes) {
  if (ticket == kNotNow) return ticket;
  Expected message{.ticket = ticket, .bytes = bytes, .late_ns = 0};
  // Messages that decorators add don't count, and an empty one carries nothing that could be late.
  if (strikes_ != nullptr && envelope.purpose != Purpose::none && bytes != 0) {
    const int from = worlds_[static_cast<std::size_t>(lane.peer)];
    while (const std::optional<Strike> strike = strikes_->due(Kind::delay, lane.stream, from)) {
      const std::uint64_t late_ns = strike->late_ns;
      strikes_->done(*strike, {strike->fault, lane.stream, from, bytes,
                               fmt::format("it comes {:g} ms later", static_cast<double>(late_ns) * 1e-6)});
      message.late_ns += late_ns;
    }
  }
  lanes_[lane].push_back(message);
  return ticket;
}

/// Starts a message's time on the link if it has arrived. Returns what the transport tells of it, which is asked once: a second
/// answer may differ.
Outcome DelayTransport::see(LaneId lane, Expected& message) {
  if (message.ready_ns != 0) return Outcome::done;
  if (const Outcome outcome = inner().test_receive(lane, message.ticket); outcome != Outcome::done) return outcome;
  std::uint64_t& free = link_free_ns_[lane.peer];
  const double speed = speed_of(lane, message.bytes);
  const auto travel = speed > 0 ? static_cast<std::uint64_t>(static_cast<double>(message.bytes) / speed) : 0;
  free = std::max(free, posix::now_ns()) + travel;
  message.ready_ns = free + message.late_ns;
  return Outcome::done;
}

Outcome DelayTransport::test_receive(LaneId lane, Ticket ticket) {
  std::deque<Expected>& expected = lanes_[lane];
  const auto message = std::ranges::find(expected, ticket, &Expected::ticket);
  if (message == expected.end()) return inner().test_receive(lane, ticket);
  if (const Outcome outcome = see(lane, *message); outcome != Outcome::done) return outcome;  // failures aren't delayed
  if (posix::now_ns() < message->ready_ns) return Outcome::pending;
  expected.erase(message);
  return Outcome::done;
}

/// Counts a message as withheld until it is taken: the rank may not have tested one that has just become ready.
bool DelayTransport::withholds(int peer) const {
  return std::ranges::any_of(lanes_, [&](const auto& each) {
    const auto& [lane, expected] = each;
    return lane.peer == peer && !expected.empty() && expected.front().ready_ns != 0;
  });
}

/// Starts the time of messages when they arrive, not when the caller tests for them.
bool DelayTransport::progress() {
  for (auto& [lane, expected] : lanes_) {
    for (Expected& message : expected) {
      if (message.ready_ns == 0) see(lane, message);
      if (message.ready_ns == 0) break;
    }
  }
  return inner().progress();
}

std::uint64_t DelayTransport::arm() {
  std::uint64_t wake = inner().arm();
  const std::uint64_t now = posix::now_ns();
  for (const auto& [lane, expected] : lanes_) {
    for (const Expected& message : expected) {
      // One that is ready by now is found by the last look before the sleep, unless nobody waits for it yet.
      if (message.ready_ns > now) wake = std::min(wake, message.ready_ns);
    }
  }
  return wake;
}

}  // namespace tsprun::detail::fault
