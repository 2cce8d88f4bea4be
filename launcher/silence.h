// Measures how long a rank has shown no sign of life, seen from outside by its launcher: a watchdog that doesn't depend on any
// rank.
//
// Ranks watch each other only while they wait for each other. None of them can tell that all are stopped, or that one spins in a
// foreign library while no rank waits for it. A slow rank isn't silent, because all that it does can be seen (it ticks, waits,
// touches new memory, reads, writes). Time doesn't count while the rank gets no core, sleeps in the kernel (a disk), is held by a
// debugger, or while its launcher was itself stopped.
#pragma once

#include <cstdint>

namespace tsprun::detail::launcher {

/// Observation of a rank at one moment.
struct Glance {
  std::uint64_t signs = 0;  ///< a number that changes with everything that the rank does
  char state = '?';         ///< state of its process: R, S, D, T (stopped), t (traced)
  std::uint64_t cpu = 0;    ///< processor time that it has had, in any unit
};

/// The silence of one rank.
class Silence {
 public:
  /// Adds the time since the last look to the silence if the rank showed no sign of life, else sets the silence to 0. At most
  /// `longest_ns` are added: if more has passed, the launcher itself didn't run.
  void look(const Glance& now, std::uint64_t now_ns, std::uint64_t longest_ns);
  /// Sets the silence to 0, because the rank isn't silent or isn't the one to blame.
  void restart() { silent_ns_ = 0; }
  /// Returns how long the rank has been silent, in nanoseconds.
  std::uint64_t ns() const { return silent_ns_; }

 private:
  Glance last_;
  std::uint64_t last_ns_ = 0;  ///< 0: there was no look yet
  std::uint64_t silent_ns_ = 0;
};

}  // namespace tsprun::detail::launcher
