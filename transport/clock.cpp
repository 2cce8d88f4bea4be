// Reads CLOCK_MONOTONIC, and sleeps in real time.
#include "transport/clock.h"

#include "transport/doorbell.h"
#include "transport/posix.h"

namespace tsprun::detail {

void Clock::sleep(SleepSet& set, std::uint64_t nanoseconds) const { set.sleep(nanoseconds); }

const Clock& real_clock() {
  class Real final : public Clock {
   public:
    std::uint64_t now_ns() const override { return posix::now_ns(); }
  };
  static const Real clock;
  return clock;
}

}  // namespace tsprun::detail
