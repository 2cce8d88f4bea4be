// One doorbell a rank: a word in node memory that peers ring when they have left something and the rank sleeps.
//
// Protocol (all accesses are seq_cst, so that "write, then look at the bell" and "arm, then look at the data" can't both miss):
//   sleeper: arm(); look once more; sleep(); disarm()
//   waker:   write the data; ring()                     ring() costs one load while the rank is awake
// A sleep lasts at most 100 ms, so a waker that died in between can't hang anyone.
//
// A rank whose only peers share its memory sleeps on the word itself, a futex. A rank that waits for descriptors too (sockets, a
// NIC's channel) sleeps in epoll_wait: then its bell is an eventfd, made by the launcher before it starts ranks, so that it has
// the same number in all processes of the node.
#pragma once

#include "transport/posix.h"

#include <atomic>
#include <cstdint>
#include <span>

namespace tsprun {

/// Lies in node memory, one a rank, on a line of its own.
///
///   0 ┌───────┬──────┬──────────────┐   armed: 1 while the owner sleeps or is about to; written by the owner (1) and wakers (0)
///     │ armed │ bell │ padding      │   bell: 1 + the number of the owner's eventfd; 0: none, the word is a futex. Written by
///     └───────┴──────┴──────────────┘   the launcher before any rank starts
struct alignas(128) Doorbell {
  std::atomic<std::uint32_t> armed{0};
  std::uint32_t bell{0};

  void arm() { armed.store(1, std::memory_order_seq_cst); }
  void disarm() { armed.store(0, std::memory_order_seq_cst); }
  /// Sleeps until rung, at most `nanoseconds` (capped at 100 ms). Returns at once if no longer armed. Precondition: no bell.
  void sleep(std::uint64_t nanoseconds);
  /// Wakes the owner if it is armed. Call after a seq_cst store of what it shall see.
  void ring() {
    if (armed.load(std::memory_order_seq_cst) != 0) wake();
  }
  int bell_descriptor() const { return static_cast<int>(bell) - 1; }

 private:
  void wake();
};
static_assert(sizeof(Doorbell) == 128);

/// Where a rank sleeps: on its doorbell alone, or on an epoll set of its bell and all descriptors of its transports.
class Bed {
 public:
  /// `descriptors`: those of the transports, -1 for none. The doorbell must outlive the bed. Throws Error(refused).
  Bed(Doorbell& doorbell, std::span<const int> descriptors);

  /// The last step of the protocol above.
  void sleep(std::uint64_t nanoseconds);

 private:
  Doorbell* doorbell_;
  posix::UniqueFd epoll_;  // empty: the futex will do
};

}  // namespace tsprun
