// One doorbell a rank: a word in node memory that peers ring when they have left something and the rank sleeps.
//
// Protocol (all accesses are seq_cst, so that "write, then look at the bell" and "arm, then look at the data" can't both miss):
//   sleeper: arm(); look once more; sleep(); disarm()
//   waker:   write the data; ring()                     ring() costs one load while the rank is awake
// A sleep lasts at most 100 ms, so a waker that died in between can't hang anyone.
#pragma once

#include <atomic>
#include <cstdint>

namespace tsp {

/// Lies in node memory, one a rank, on a line of its own.
///
///   0 ┌───────┬──────────────┐
///     │ armed │ padding      │   armed: 1 while the owner sleeps or is about to; written by the owner (1) and by wakers (0)
///     └───────┴──────────────┘ 128
struct alignas(128) Doorbell {
  std::atomic<std::uint32_t> armed{0};

  void arm() { armed.store(1, std::memory_order_seq_cst); }
  void disarm() { armed.store(0, std::memory_order_seq_cst); }
  /// Sleeps until rung, at most `nanoseconds` (capped at 100 ms). Returns at once if no longer armed.
  void sleep(std::uint64_t nanoseconds);
  /// Wakes the owner if it is armed. Call after a seq_cst store of what it shall see.
  void ring() {
    if (armed.load(std::memory_order_seq_cst) != 0) wake();
  }

 private:
  void wake();
};
static_assert(sizeof(Doorbell) == 128);

}  // namespace tsp
