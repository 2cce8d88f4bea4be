// Counts silence only while the process could have run: not in the kernel, traced, or waiting for a core.
#include "launcher/silence.h"

#include <algorithm>

namespace tsprun::detail::launcher {

void Silence::look(const Glance& now, std::uint64_t now_ns, std::uint64_t longest_ns) {
  const std::uint64_t passed = last_ns_ == 0 ? 0 : std::min(now_ns - last_ns_, longest_ns);
  const bool held = now.state == 'D' || now.state == 't';
  const bool starved = now.state == 'R' && now.cpu == last_.cpu;
  if (last_ns_ == 0 || now.signs != last_.signs) silent_ns_ = 0;
  else if (!held && !starved) silent_ns_ += passed;
  last_ = now;
  last_ns_ = now_ns;
}

}  // namespace tsprun::detail::launcher
