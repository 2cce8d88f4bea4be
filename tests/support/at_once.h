// Cases that mostly wait, such as jobs that end at their deadlines, beside one another instead of one after the other.
#pragma once

#include <thread>
#include <vector>

namespace tsprun::detail::test {

/// Calls body(case) for all cases at once, each in a thread of its own, and returns when all are over.
template <class Case, class Body>
void at_once(const std::vector<Case>& cases, const Body& body) {
  std::vector<std::jthread> threads;
  for (const Case& each : cases) threads.emplace_back([&body, &each] { body(each); });
}

}  // namespace tsprun::detail::test
