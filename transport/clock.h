// Clock that the library asks for the time: the system's, or virtual time's (transport/sim/timeline.h).
#pragma once

#include <cstdint>

namespace tsprun::detail {

/// A clock that never goes back. Its functions may be called by any thread.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual ~Clock() = default;
  /// Returns the nanoseconds since a moment that all ranks of a machine share.
  virtual std::uint64_t now_ns() const = 0;
};

/// Returns the clock of the kernel, CLOCK_MONOTONIC (clock_gettime(2)).
const Clock& real_clock();

}  // namespace tsprun::detail
