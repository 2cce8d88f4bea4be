#include "transport/fault/delay_transport.h"

#include "transport/posix.h"

#include <algorithm>

namespace tsp::fault {

Ticket DelayTransport::expect(LaneId lane, Ticket ticket, std::size_t bytes) {
  if (ticket != kNotNow) {
    Lane& waiting = lanes_[{lane.peer, lane.stream}];
    waiting.id = lane;
    waiting.expected.push_back({.ticket = ticket, .bytes = bytes});
  }
  return ticket;
}

/// If the message is there, its time on the link begins.
void DelayTransport::see(Lane& lane, Expected& message) {
  if (message.ready_ns != 0 || inner_.test_receive(lane.id, message.ticket) != Outcome::done) return;
  std::uint64_t& free = link_free_ns_[lane.id.peer];
  const double bytes = static_cast<double>(message.bytes);
  const auto travel = speed_.bytes_per_ns > 0 ? static_cast<std::uint64_t>(bytes / speed_.bytes_per_ns) : 0;
  free = std::max(free, posix::now_ns()) + travel;
  message.ready_ns = free + speed_.latency_ns;
}

Outcome DelayTransport::test_receive(LaneId lane, Ticket ticket) {
  const auto found = lanes_.find({lane.peer, lane.stream});
  if (found == lanes_.end()) return inner_.test_receive(lane, ticket);
  std::deque<Expected>& expected = found->second.expected;
  const auto message = std::ranges::find(expected, ticket, &Expected::ticket);
  if (message == expected.end()) return inner_.test_receive(lane, ticket);
  see(found->second, *message);
  if (message->ready_ns == 0) return inner_.test_receive(lane, ticket);  // pending, or a failure that nothing shall delay
  if (posix::now_ns() < message->ready_ns) return Outcome::pending;
  expected.erase(message);
  return Outcome::done;
}

/// Messages are seen when they come, not when somebody asks for them.
bool DelayTransport::progress() {
  for (auto& [key, lane] : lanes_) {
    for (Expected& message : lane.expected) {
      if (message.ready_ns == 0) see(lane, message);
      if (message.ready_ns == 0) break;
    }
  }
  return inner_.progress();
}

std::uint64_t DelayTransport::arm() {
  std::uint64_t wake = inner_.arm();
  for (const auto& [key, lane] : lanes_) {
    for (const Expected& message : lane.expected) {
      if (message.ready_ns != 0) wake = std::min(wake, message.ready_ns);
    }
  }
  return wake;
}

}  // namespace tsp::fault
