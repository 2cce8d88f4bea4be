// Prices products and attention by the machine's fractions of its peak, and everything by its memory.
#include "layers/theory/kernel_price.h"

#include "layers/theory/eager_price.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace tsprun::detail::theory {

namespace {

/// FLOPs of attention for each query-key pair and element of a head.
constexpr double kForwardFlops = 4;
constexpr double kBackwardFlops = 10;

double peak_of(const KernelCost& cost, const Machine& machine) {
  const std::optional<double> peak = machine.flops(cost.dtype);
  if (!peak) {
    throw Error(Cause::refused, fmt::format("{} doesn't state flops_per_s for {}, in which {} computes", machine.name,
                                            tsprun::name(cost.dtype), cost.kernel));
  }
  return *peak;
}

/// Sizes of attention, as numbers.
struct AttentionSizes {
  double heads;  ///< of all sequences
  double queries, keys, elements;

  explicit AttentionSizes(const KernelCost& cost)
      : heads(static_cast<double>(cost.sizes[0] * cost.sizes[3])),
        queries(static_cast<double>(cost.sizes[1])),
        keys(static_cast<double>(cost.sizes[2])),
        elements(static_cast<double>(cost.sizes[4])) {}
};

/// Returns the fraction of the peak that a kernel with FLOPs reaches.
double fraction_of(const KernelCost& cost, const Machine& machine) {
  if (cost.kernel == "gemm") {
    const auto results = static_cast<double>(cost.sizes[0] * cost.sizes[1]);
    return machine.gemm_efficiency.at({.flops = cost.flops, .row = static_cast<double>(cost.sizes[2]), .column = results});
  }
  const bool forward = cost.kernel == "flash forward";
  const AttentionSizes of(cost);
  const double pairs = cost.flops / ((forward ? kForwardFlops : kBackwardFlops) * of.elements);
  const Efficiency& efficiency = forward ? machine.attention_efficiency.forward : machine.attention_efficiency.backward;
  return efficiency.at({.flops = cost.flops, .row = of.elements, .column = pairs / (of.heads * of.queries)});
}

/// Returns the seconds of attention in kernels of its own for each product and each softmax.
double unfused_seconds(const KernelCost& cost, const Machine& machine, bool drops) {
  const AttentionSizes of(cost);
  const double peak = peak_of(cost, machine);
  const double scores = of.heads * of.queries * of.keys;
  const auto bytes = static_cast<double>(size_of(cost.dtype));
  const double pass = scores * bytes / machine.memory_rate();
  const auto passes_over = [&](double passes) { return machine.launch_seconds + passes * pass; };
  const auto product = [&](double depth, double results) {
    const double flops = 2 * scores * of.elements;
    const double fraction = machine.gemm_efficiency.at({.flops = flops, .row = depth, .column = results});
    return machine.launch_seconds + std::max(flops / (peak * fraction), pass);
  };
  const double of_scores = product(of.elements, scores);
  const double of_queries = product(of.keys, of.heads * of.queries * of.elements);
  const double of_keys = product(of.queries, of.heads * of.keys * of.elements);
  const double dropout = drops ? passes_over(2 + 1 / bytes) : 0;
  const double make_scores = of_scores + passes_over(2) + dropout;
  if (cost.kernel == "flash forward") return make_scores + of_queries;
  const double again = machine.attention == AttentionKind::unfused_again ? make_scores : 0;
  return again + of_scores + dropout + passes_over(3) + of_queries + 2 * of_keys;
}

/// Returns whether a kernel is attention in kernels of its own. It makes the scores that documents hide, too, if these are all.
bool is_unfused(const KernelCost& cost, const Machine& machine) {
  const bool attends = cost.kernel == "flash forward" || cost.kernel == "flash backward";
  const bool scores = attends && cost.sizes[0] * cost.sizes[1] * cost.sizes[2] * cost.sizes[3] > 0;
  return scores && machine.attention != AttentionKind::fused;
}

}  // namespace

int kernel_launches(const KernelCost& cost, const Machine& machine, const PriceFacts& facts) {
  if (machine.cores) return 1;
  if (cost.kernel == "bias") return 0;
  if (is_unfused(cost, machine)) {
    const int drops = facts.drops ? 1 : 0;
    const int scores = 2 + drops;  // their product, the softmax, and dropout
    if (cost.kernel == "flash forward") return scores + 1;
    return (machine.attention == AttentionKind::unfused_again ? scores : 0) + 5 + drops;
  }
  if (machine.elementwise == Elementwise::fused) return 1;
  const auto price = eager_price(cost, machine, facts.dtype, facts.layer_norms);
  return price ? price->launches : 1;
}

double kernel_seconds(const KernelCost& cost, const Machine& machine, const PriceFacts& facts) {
  if (machine.cores) return machine.launch_seconds + machine.cores->price(cost, machine.name).seconds;
  if (cost.kernel == "bias") return 0;
  if (machine.elementwise == Elementwise::eager) {
    if (const auto price = eager_price(cost, machine, facts.dtype, facts.layer_norms)) return price->seconds;
  }
  const double bytes = static_cast<double>(cost.bytes_read) + static_cast<double>(cost.bytes_written);
  const double memory = bytes / machine.memory_rate();
  if (is_unfused(cost, machine)) return unfused_seconds(cost, machine, facts.drops);
  if (cost.flops == 0) return machine.launch_seconds + memory;
  return machine.launch_seconds + std::max(cost.flops / (peak_of(cost, machine) * fraction_of(cost, machine)), memory);
}

double kernels_seconds(const Program& program, const std::function<double(const KernelCost&)>& price) {
  std::vector<double> prices;
  for (const KernelCost& cost : program.costs) prices.push_back(price(cost));
  double sum = 0;
  for (const ProgramItem& item : program.items) {
    if (item.kind == ItemKind::kernel) sum += prices[item.index];
  }
  return sum;
}

}  // namespace tsprun::detail::theory
