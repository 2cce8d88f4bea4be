// Tensor parallelism: each sublayer's activations, forward and backward, and the gradients of copied K/V heads.
#include "layers/theory/ways.h"

namespace tsprun::detail::theory {

void add_tp(BlockFlows& of) {
  const std::uint64_t sublayer = 2 * of.setting.hidden_elements() * of.e * (of.T - 1) * of.L;
  for (const Phase phase : {Phase::attention, Phase::mlp}) {
    for (const bool backward : {false, true}) {
      // Megatron's sequence parallelism gathers each sublayer's input once more in backward.
      const bool again = backward && of.layout.slices_tokens();
      of.add(of.layout.tensor_axis(), Purpose::activations, Pattern::collective, phase, backward, false,
             again ? sublayer / 2 * 3 : sublayer, (again ? 3 : 2) * of.L);
    }
  }
  // Norms over all heads of q and of k sum the squares of each row, and backward also what the gradient has in its direction;
  // they sum again what is projected again.
  const std::uint64_t normed = of.sum(
      [](const LayerSpec& layer) { return layer.query_key_norm == QueryKeyNorm::rows ? (layer.projects_keys() ? 2U : 1U) : 0U; });
  for (const bool backward : {false, true}) {
    const std::uint64_t rows = backward ? (of.setting.recompute == Recompute::none ? 2 : 3) : 1;
    of.add(of.layout.tensor_axis(), Purpose::activations, Pattern::collective, Phase::attention, backward, false,
           2 * rows * of.setting.tokens() * of.a * (of.T - 1) * normed, 2 * rows * normed);
  }
  // If the axis that cuts tokens shares the weights, too, each copy's gradient lies on one of its ranks.
  // Where data ranks have parts of the weights, copies are summed before each micro-batch's gradients are cut.
  const std::uint64_t copies = tokens_way(of.layout).shares_weights ? 1 : of.D;
  of.add(of.layout.tensor_axis(), Purpose::gradients, Pattern::collective, Phase::pass, true, true,
         2 * of.sum([&](const LayerSpec& layer) { return of.copied(layer); }) * of.a * copies, 2 * of.L)
      .once = !of.layout.shares_weights();
}

}  // namespace tsprun::detail::theory
