// A user's own program, linked against the installed package. Each rank gives its number + 1; all get the sum and the list.
//
//   tsprun -n 4 run -- ./example
#include "core/context.h"

#include <array>
#include <cstdio>
#include <span>
#include <vector>

#include <tsprun/tsprun.h>

int main() {
  tsprun::Context context = tsprun::Context::from_environment();
  tsprun::Communicator& world = context.world();

  std::array<float, 1> mine = {static_cast<float>(world.rank() + 1)};
  std::array<float, 1> sum = {};
  world.all_reduce(std::span<const float>(mine), std::span<float>(sum), tsprun::Reduction::sum);

  std::vector<float> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::span<const float>(mine), std::span<float>(all));

  std::printf("%s %d of %d: sum %g, gathered", greeting(), world.rank(), world.size(), static_cast<double>(sum[0]));
  for (float value : all) std::printf(" %g", static_cast<double>(value));
  std::printf("\n");
}
