// A clock for ranks that are threads of one process and share one node's memory: it stands still while any of them works, and
// jumps to the next time for which one sleeps when all of them do. So deadlines pass in no time, and never on a rank that a busy
// machine doesn't let run.
//
// A rank sleeps in the engine's wait loop, or in sleep_for(). It isn't asleep any more once its doorbell was rung, whether or not
// its thread has noticed. Rings that come through sockets aren't seen here, so ranks of several nodes can't use this clock.
#pragma once

#include "transport/clock.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tsprun::detail {
struct Doorbell;
}

namespace tsprun::detail::test {

/// Clock of several ranks; used by their threads.
class SharedClock final : public Clock {
 public:
  SharedClock();

  std::uint64_t now_ns() const override;
  void sleep(SleepSet& set, std::uint64_t nanoseconds) const override;
  /// Lets the calling rank sleep that long, deaf to its doorbell.
  void sleep_for(std::uint64_t nanoseconds) const;
  /// Says that so many ranks work from now on; leave() is called once for each that has ended.
  void join(int ranks);
  void leave();
  /// Returns the seconds since the clock was made.
  double seconds() const;

 private:
  struct Sleeper {
    std::uint64_t until = 0;
    Doorbell* bell = nullptr;  // null: deaf
    bool woken = false;
  };
  void go_on() const;

  mutable std::mutex mutex_;
  mutable std::condition_variable woken_;
  mutable std::vector<Sleeper*> sleepers_;
  mutable std::uint64_t now_;
  std::uint64_t begin_;
  int ranks_ = 0;
};

}  // namespace tsprun::detail::test
