// TSP: attention's shards are broadcast and their gradients reduced to the owners; the MLP's shards and gradients travel round
// the ring.
#include "layers/theory/ways.h"

namespace tsprun::detail::theory {

void add_tsp(BlockFlows& of) {
  const std::uint64_t hops = of.D - 1;
  const std::uint64_t attention =
      of.sum([&](const LayerSpec& layer) { return of.setting.attention_parameters(layer) + of.copied(layer); }) * hops;
  const std::uint64_t mlp = of.sum([&](const LayerSpec& layer) { return of.setting.mlp_parameters(layer); }) * hops;
  const auto add = [&](Purpose purpose, bool backward, std::uint64_t bytes) {
    of.add(of.layout.token_axis(), purpose, Pattern::collective, Phase::attention, backward, true, attention * bytes,
           of.D * of.L);
    of.add(of.layout.token_axis(), purpose, Pattern::ring, Phase::mlp, backward, true, mlp * bytes, hops * of.L);
  };
  add(Purpose::weights, false, of.e);
  add(Purpose::weights, true, of.e);
  add(Purpose::gradients, true, of.a);
}

}  // namespace tsprun::detail::theory
