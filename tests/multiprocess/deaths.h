// What tests of deaths share: how soon they must be noticed, and whom they strike.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <sys/types.h>
#include <vector>

namespace tsprun::detail::test {

/// Longest time, in seconds, from a death to the end of tsprun. One second is what the product promises; sanitizers slow the
/// processes' end.
#if defined(TSP_SANITIZE_ADDRESS) || defined(TSP_SANITIZE_THREAD)
inline constexpr double kPromptly = 4.0;
#else
inline constexpr double kPromptly = 1.0;
#endif

/// Children of a process, in the order of their birth.
inline std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", parent));
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

}  // namespace tsprun::detail::test
