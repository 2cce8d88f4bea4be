#include "transport/fault/delay_transport.h"

#include "transport/posix.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

namespace tsp::fault {

namespace {

/// From [0, 1), by (seed, from, to, stream, number) alone.
double drawn(const Spec& spec, Stream stream, std::uint64_t number) {
  const std::uint64_t key[5] = {spec.seed, static_cast<std::uint64_t>(spec.from), static_cast<std::uint64_t>(spec.to),
                                static_cast<std::uint64_t>(stream), number};
  return static_cast<double>(XXH3_64bits(key, sizeof key) >> 11) * 0x1p-53;
}

}  // namespace

/// On one link the slowest holds; latencies add up.
LinkSpeed DelayTransport::speed_for(LaneId lane, const Expected& message) const {
  LinkSpeed speed = speed_;
  for (const LinkFault& fault : faults_) {
    if (fault.peer != lane.peer || drawn(fault.spec, lane.stream, message.number) >= fault.spec.probability) continue;
    speed.latency_ns += static_cast<std::uint64_t>(fault.spec.milliseconds * 1e6);
    const double limit = fault.spec.gigabytes_per_s;  // 10⁹ bytes per second are bytes per nanosecond
    if (limit > 0 && (speed.bytes_per_ns <= 0 || limit < speed.bytes_per_ns)) speed.bytes_per_ns = limit;
    if (on_blow) on_blow({fault.number, lane.stream, fault.spec.from, message.bytes, "it comes later"});
  }
  return speed;
}

Ticket DelayTransport::expect(LaneId lane, Ticket ticket, std::size_t bytes) {
  if (ticket != kNotNow) {
    Lane& waiting = lanes_[{lane.peer, lane.stream}];
    waiting.id = lane;
    waiting.expected.push_back({.ticket = ticket, .bytes = bytes, .number = ++waiting.messages});
  }
  return ticket;
}

/// If the message is there, its time on the link begins.
void DelayTransport::see(Lane& lane, Expected& message) {
  if (message.ready_ns != 0 || inner().test_receive(lane.id, message.ticket) != Outcome::done) return;
  std::uint64_t& free = link_free_ns_[lane.id.peer];
  const double bytes = static_cast<double>(message.bytes);
  const LinkSpeed speed = faults_.empty() ? speed_ : speed_for(lane.id, message);
  const auto travel = speed.bytes_per_ns > 0 ? static_cast<std::uint64_t>(bytes / speed.bytes_per_ns) : 0;
  free = std::max(free, posix::now_ns()) + travel;
  message.ready_ns = free + speed.latency_ns;
}

Outcome DelayTransport::test_receive(LaneId lane, Ticket ticket) {
  const auto found = lanes_.find({lane.peer, lane.stream});
  if (found == lanes_.end()) return inner().test_receive(lane, ticket);
  std::deque<Expected>& expected = found->second.expected;
  const auto message = std::ranges::find(expected, ticket, &Expected::ticket);
  if (message == expected.end()) return inner().test_receive(lane, ticket);
  see(found->second, *message);
  if (message->ready_ns == 0) return inner().test_receive(lane, ticket);  // pending, or a failure that nothing shall delay
  if (posix::now_ns() < message->ready_ns) return Outcome::pending;
  expected.erase(message);
  return Outcome::done;
}

bool DelayTransport::withholds(int peer) const {
  const std::uint64_t now = posix::now_ns();
  return inner().withholds(peer) || std::ranges::any_of(lanes_, [&](const auto& each) {
           const std::deque<Expected>& expected = each.second.expected;
           return each.first.first == peer && !expected.empty() && expected.front().ready_ns > now;
         });
}

/// Messages are seen when they come, not when somebody asks for them.
bool DelayTransport::progress() {
  for (auto& [key, lane] : lanes_) {
    for (Expected& message : lane.expected) {
      if (message.ready_ns == 0) see(lane, message);
      if (message.ready_ns == 0) break;
    }
  }
  return inner().progress();
}

std::uint64_t DelayTransport::arm() {
  std::uint64_t wake = inner().arm();
  for (const auto& [key, lane] : lanes_) {
    for (const Expected& message : lane.expected) {
      if (message.ready_ns != 0) wake = std::min(wake, message.ready_ns);
    }
  }
  return wake;
}

}  // namespace tsp::fault
