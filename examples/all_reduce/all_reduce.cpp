// Each rank contributes its number + 1. All ranks get the sum, by all_reduce, and the list, by all_gather.
//
//   tsprun -n 4 run -- build/all_reduce
//
// Started by itself, the program is a world of one rank.
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

  std::printf("rank %d of %d: sum %g, gathered", world.rank(), world.size(), static_cast<double>(sum[0]));
  for (float value : all) std::printf(" %g", static_cast<double>(value));
  std::printf("\n");
}
