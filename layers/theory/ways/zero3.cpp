// ZeRO-3: the weights of each sublayer are gathered, and their gradients scattered.
#include "layers/theory/ways.h"

namespace tsprun::detail::theory {

void add_zero3(BlockFlows& of) {
  const auto sublayer = [&](Phase phase, std::uint64_t parameters) {
    const std::uint64_t moved = parameters * (of.D - 1);
    for (const bool backward : {false, true})
      of.add(of.layout.token_axis(), Purpose::weights, Pattern::collective, phase, backward, true, moved * of.e, of.L);
    of.add(of.layout.token_axis(), Purpose::gradients, Pattern::collective, phase, true, true, moved * of.a, of.L);
  };
  sublayer(Phase::attention, of.sum([&](const LayerSpec& layer) { return of.setting.attention_parameters(layer); }));
  sublayer(Phase::mlp, of.sum([&](const LayerSpec& layer) { return of.setting.mlp_parameters(layer); }));
}

}  // namespace tsprun::detail::theory
