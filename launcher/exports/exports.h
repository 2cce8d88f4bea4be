// `--export` of `simulate`: what was played, for other simulators. goal.h and chakra.h say what the files hold.
#pragma once

#include "layers/theory/simulate.h"

#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Values of `--export`; an empty path: not asked for.
struct Exports {
  std::string goal;    ///< file
  std::string chakra;  ///< folder
};

/// Reads the values of --export, "goal:FILE" and "chakra:DIR". Throws Error(refused), also if they can't be written.
Exports read_exports(const std::vector<std::string>& texts);
/// Writes what was asked for. `played` has every rank of the world, with its tasks and its program. `blocking`: operations were
/// waited for at once. Throws Error(refused) if something can't be written.
void write_exports(const Exports& exports, const theory::Simulated& played, bool blocking);

}  // namespace tsprun::detail::launcher
