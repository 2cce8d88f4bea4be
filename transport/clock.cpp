// Reads CLOCK_MONOTONIC.
#include "transport/clock.h"

#include "transport/posix.h"

namespace tsprun::detail {

const Clock& real_clock() {
  class Real final : public Clock {
   public:
    std::uint64_t now_ns() const override { return posix::now_ns(); }
  };
  static const Real clock;
  return clock;
}

}  // namespace tsprun::detail
