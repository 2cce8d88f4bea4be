// Time as a machine that isn't busy would count it, for limits of what a test waits for. A test that waits looks again and again,
// and sleeps in between. What such a round takes beyond its sleep and its own work is the time for which others kept the thread
// from running, and so presumably what it waits for: that time doesn't count. On a quiet machine nearly all does, so a limit is
// reached by what hangs or dawdles, and not by what merely has to share its cores.
#pragma once

#include "transport/posix.h"

#include <algorithm>
#include <cstdint>

namespace tsprun::detail::test {

/// Counts the seconds since it was made, but for those that until() has lost to others in the same thread.
class PatientWatch {
 public:
  PatientWatch();
  double seconds() const { return wall_seconds() - (lost_seconds() - lost_at_start_); }
  /// Returns the share of time that counts: 1 on a quiet machine.
  double pace() const { return wall_seconds() > 0 ? std::max(0.0, seconds()) / wall_seconds() : 1; }

 private:
  friend class Rounds;
  static double& lost_seconds();
  double wall_seconds() const { return static_cast<double>(posix::now_ns() - start_ns_) * 1e-9; }

  std::uint64_t start_ns_;
  double lost_at_start_;
};

/// The pauses between one look and the next of a thread that waits.
class Rounds {
 public:
  Rounds();
  /// Sleeps for two milliseconds.
  void pause();

 private:
  std::uint64_t wall_ns_;
  std::uint64_t work_ns_;
};

/// Looks until the condition holds, and returns true; false if it doesn't within so many seconds of a machine that isn't busy.
template <class Condition>
bool until(double seconds, Condition condition) {
  const PatientWatch watch;
  Rounds rounds;
  while (!condition()) {
    if (watch.seconds() >= seconds) return condition();
    rounds.pause();
  }
  return true;
}

}  // namespace tsprun::detail::test
