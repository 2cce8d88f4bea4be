// Wakes a sleeping rank. Every rank has one doorbell: a word in node memory that peers ring after they have left something for
// it.
//
// Protocol (all accesses are seq_cst, those to the data included, so that "write, then look at the bell" and "arm, then look at
// the data" can't both miss):
//   sleeper: arm(); look once more; sleep(); disarm()
//   waker:   write the data; ring()                     ring() costs one load while the rank is awake
// A sleep lasts at most 100 ms, so a waker that dies between the two steps can't hang anyone.
//
// A rank whose peers all share its memory sleeps on the word itself, a futex (futex(2)). A rank that also waits for descriptors
// (sockets, a NIC's completion channel) sleeps in epoll_wait; its bell is then an eventfd, which the launcher makes before it
// starts ranks, so that it has the same number in all processes of the node.
#pragma once

#include "transport/atomics.h"
#include "transport/posix.h"

#include <atomic>
#include <cstdint>
#include <span>

namespace tsprun::detail {

/// The protocol's word.
template <class Atomics>
struct BasicBell {
  typename Atomics::template Atomic<std::uint32_t> armed{0};

  /// Announces that the owner is about to sleep. Owner only.
  void arm() { armed.store(1, std::memory_order_seq_cst); }
  /// Withdraws arm(). Owner only.
  void disarm() { armed.store(0, std::memory_order_seq_cst); }
  /// Returns true if the owner may sleep, or sleeps.
  bool is_armed() const { return armed.load(std::memory_order_seq_cst) != 0; }
  /// Returns true if the caller is the one who must wake the owner.
  bool claim() { return is_armed() && armed.exchange(0, std::memory_order_seq_cst) != 0; }
};

/// The doorbell of one rank, in node memory, on cache lines of its own.
///
///   0 ┌───────┬──────┬──────────────┐   armed: 1 while the owner sleeps or is about to; written by the owner (1) and wakers (0)
///     │ armed │ bell │ padding      │   bell: 1 + the number of the owner's eventfd; 0: none, the word is a futex. Written by
///     └───────┴──────┴──────────────┘   the launcher before any rank starts
struct alignas(128) Doorbell : BasicBell<SystemAtomics> {
  std::uint32_t bell{0};

  /// Sleeps until rung, at most `nanoseconds` (capped at 100 ms). Returns at once if no longer armed. May return early.
  /// Precondition: bell is 0.
  void sleep(std::uint64_t nanoseconds);
  /// Wakes the owner if it is armed. Call it after a seq_cst store of what the owner is to see. Any process of the node may
  /// call it.
  void ring() {
    if (is_armed()) wake();
  }
  /// Returns the owner's eventfd, -1 if it has none.
  int bell_descriptor() const { return static_cast<int>(bell) - 1; }

 private:
  /// Wakes the owner, unless another caller does.
  void wake();
};
static_assert(sizeof(Doorbell) == 128);

/// The place where one rank sleeps: its doorbell alone, or an epoll set of its bell and all descriptors of its transports.
class SleepSet {
 public:
  /// Takes the transports' descriptors (-1: none, skipped). The doorbell must outlive this object; the descriptors are
  /// borrowed. Throws Error(refused) if the epoll set can't be made.
  SleepSet(Doorbell& doorbell, std::span<const int> descriptors);

  /// Sleeps until rung or until a descriptor is readable, at most `nanoseconds` (capped at 100 ms). Call it after arm() and a
  /// last look, as in the protocol above.
  void sleep(std::uint64_t nanoseconds);
  Doorbell& doorbell() const { return *doorbell_; }

 private:
  Doorbell* doorbell_;
  posix::UniqueFd epoll_;  // empty: sleeps on the futex
};

}  // namespace tsprun::detail
