// Clock that the library asks for the time: the system's, or virtual time's (transport/sim/timeline.h).
#pragma once

#include <cstdint>

namespace tsprun::detail {

class SleepSet;

/// A clock that never goes back. Its functions may be called by any thread.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual ~Clock() = default;
  /// Returns the nanoseconds since a moment that all ranks of a machine share.
  virtual std::uint64_t now_ns() const = 0;
  /// Lets the calling rank sleep until it is woken, at most that long by this clock; see SleepSet::sleep(). A clock that tests
  /// move may wake it earlier in real time.
  virtual void sleep(SleepSet& set, std::uint64_t nanoseconds) const;
};

/// Returns the clock of the kernel, CLOCK_MONOTONIC (clock_gettime(2)).
const Clock& real_clock();

}  // namespace tsprun::detail
