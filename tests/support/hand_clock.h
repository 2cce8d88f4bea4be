// A clock that a test moves by hand, for what depends on elapsed time.
#pragma once

#include "transport/clock.h"

namespace tsprun::detail::test {

/// Clock that stands still until it is set. For one thread.
struct HandClock final : Clock {
  std::uint64_t ns = 0;
  std::uint64_t now_ns() const override { return ns; }
};

}  // namespace tsprun::detail::test
