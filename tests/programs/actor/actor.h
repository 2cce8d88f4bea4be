// What the actions of the program `actor` share.
#pragma once

#include "tests/programs/folder_store.h"
#include "tsprun/tsprun.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace tsprun::detail::test {

using Arguments = std::vector<std::string>;

inline int number(const Arguments& arguments, std::size_t index, int otherwise) {
  return index < arguments.size() ? std::stoi(arguments[index]) : otherwise;
}

inline void say(const std::string& line) { std::cout << line << std::endl; }

/// Joins as the starter says or, where ACTOR_STORE names a folder, through that, as rank RANK of WORLD_SIZE.
inline tsprun::Context join() {
  const char* const folder = std::getenv("ACTOR_STORE");
  if (folder == nullptr) return tsprun::Context::from_environment();
  tsprun::detail::test::FolderStore store(folder);
  return tsprun::Context::join(std::stoi(std::getenv("RANK")), std::stoi(std::getenv("WORLD_SIZE")), store);
}

/// all_reduce of ones; throws if the sum isn't the number of ranks.
inline void reduce_ones(tsprun::Context& context, std::size_t count) {
  std::vector<float> data(count, 1.0F);
  context.world().all_reduce(tsprun::Buffer(std::span<float>(data)), tsprun::Reduction::sum);
  for (float value : data) {
    if (value != static_cast<float>(context.size()))
      throw std::runtime_error(fmt::format("a sum of {} ones is {}", context.size(), value));
  }
}

/// Functions by the names under which the actor is told to run them; each returns the exit code.
using Actions = std::map<std::string, std::function<int(const Arguments&)>>;
/// loop [forked]: all_reduces for ever; if `forked` is given, a forked child lives on, as a DataLoader's worker does.
int loop(const Arguments& arguments);
/// Returns the actions of ranks that fail, leave, or wait in vain.
Actions endings();

}  // namespace tsprun::detail::test
