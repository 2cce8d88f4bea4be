// ZeRO-3: the weights of each sublayer are gathered, and their gradients scattered.
#include "layers/theory/ways.h"

namespace tsprun::detail::theory {

void add_zero3(BlockFlows& of) {
  const auto sublayer = [&](Phase phase, std::uint64_t parameters) {
    const std::uint64_t moved = parameters * (of.D - 1) * of.L;
    for (const bool backward : {false, true})
      of.add(of.layout.token_axis(), Purpose::weights, Pattern::collective, phase, backward, true, moved * of.e, of.L);
    of.add(of.layout.token_axis(), Purpose::gradients, Pattern::collective, phase, true, true, moved * of.a, of.L);
  };
  sublayer(Phase::attention, of.setting.attention_parameters());
  sublayer(Phase::mlp, of.setting.mlp_parameters());
}

}  // namespace tsprun::detail::theory
