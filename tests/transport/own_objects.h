// The memory objects in /dev/shm that a test's own process has left there, apart from those of tests that run beside it.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <string>
#include <unistd.h>

namespace tsprun::detail::test {

/// Returns the names of the node memories that this process made.
inline std::set<std::string> own_objects() {
  const std::string prefix = fmt::format("tsp-{}-", ::getpid());
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix)) names.insert(name);
  }
  return names;
}

}  // namespace tsprun::detail::test
