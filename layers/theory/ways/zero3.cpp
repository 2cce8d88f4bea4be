// ZeRO-3: the weights of each sublayer are gathered, and their gradients scattered.
#include "core/collectives/chunks.h"
#include "layers/theory/ways.h"

namespace tsprun::detail::theory {

BlockElements held_by_zero3(const ModelConfig& model, const BlockSlice& slice, int part, int parts) {
  const auto rows = [&](std::uint64_t elements) {
    return Chunks::balanced(parts, elements / model.hidden).count(part) * model.hidden;
  };
  const BlockElements whole = elements_of(model, slice);
  return {.attention = rows(whole.attention), .mlp = rows(whole.mlp)};
}

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
