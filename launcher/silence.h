// How long a rank has shown no sign of life, by what its launcher sees of it from outside: a watchdog that trusts no rank.
//
// Ranks watch each other only where they wait for each other. That all are stopped, or that one spins in somebody else's library
// while nobody waits for it, none of them can tell. A slow rank isn't a silent one: whatever it does shows (it ticks, waits,
// touches new memory, reads, writes); time in which it gets no core, sleeps in the kernel (a disk) or is held by a debugger
// doesn't count, nor does time in which its launcher was itself stopped.
#pragma once

#include <cstdint>

namespace tsprun::launcher {

/// One look at a rank.
struct Glance {
  std::uint64_t signs = 0;  ///< changes with everything that the rank does
  char state = '?';         ///< of its process: R, S, D, T (stopped), t (traced)
  std::uint64_t cpu = 0;    ///< the time it has had, in any unit
};

class Silence {
 public:
  /// Counts the time since the look before, but at most `longest_ns`: more has only passed if the launcher didn't run.
  void look(const Glance& now, std::uint64_t now_ns, std::uint64_t longest_ns);
  /// Somebody else is the reason that the rank is silent, or it isn't: counts from 0.
  void restart() { silent_ns_ = 0; }
  std::uint64_t ns() const { return silent_ns_; }

 private:
  Glance last_;
  std::uint64_t last_ns_ = 0;  ///< 0: there was no look yet
  std::uint64_t silent_ns_ = 0;
};

}  // namespace tsprun::launcher
