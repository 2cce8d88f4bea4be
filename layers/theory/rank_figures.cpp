// Sums over a program, and lines through two sums.
#include "layers/theory/rank_figures.h"

#include <algorithm>
#include <cmath>

namespace tsprun::detail::theory {

bool RankFigures::is_nearly(const RankFigures& other) const {
  constexpr double kNearly = 1e-5;  // of the total peak
  const auto differ = [&](std::uint64_t one, std::uint64_t another) {
    return static_cast<double>(std::max(one, another) - std::min(one, another)) > kNearly * static_cast<double>(peaks.total);
  };
  for (std::size_t i = 0; i < kCategories; ++i) {
    if (differ(peaks.of[i], other.peaks.of[i])) return false;
  }
  const auto are_equal = [](double one, double another) { return std::abs(one - another) <= 1e-9 * one; };
  return received == other.received && !differ(peaks.total, other.peaks.total) && are_equal(flops, other.flops) &&
         are_equal(kernels, other.kernels);
}

double flops_of(const Program& program) {
  double sum = 0;
  for (const ProgramItem& item : program.items) {
    if (item.kind == ItemKind::kernel) sum += program.costs[item.index].flops;
  }
  return sum;
}

RankFigures figures_of(const RecordedStep& step, const Machine& machine, const PriceFacts& facts,
                       const std::vector<WhatIf>& without) {
  const auto seconds_on = [&](const Machine& on) {
    return kernels_seconds(step.program, [&](const KernelCost& cost) { return kernel_seconds(cost, on, facts); });
  };
  RankFigures figures{.peaks = step.peaks, .flops = flops_of(step.program), .kernels = seconds_on(machine)};
  for (std::size_t i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    figures.received[i] = step.traffic.forward[purpose] + step.traffic.backward[purpose];
  }
  for (const WhatIf& each : without) figures.kernels_without.push_back(seconds_on(each.without));
  return figures;
}

RankFigures grown(const RankFigures& few, const RankFigures& more, std::size_t times) {
  // Also right where a figure falls: differences of unsigned numbers wrap around, and back.
  const auto count = [&](std::uint64_t one, std::uint64_t other) { return other + times * (other - one); };
  const auto amount = [&](double one, double other) { return other + static_cast<double>(times) * (other - one); };
  RankFigures all;
  for (std::size_t i = 0; i < kCategories; ++i) all.peaks.of[i] = count(few.peaks.of[i], more.peaks.of[i]);
  all.peaks.total = count(few.peaks.total, more.peaks.total);
  for (std::size_t i = 0; i < kPurposes; ++i) all.received[i] = count(few.received[i], more.received[i]);
  all.flops = amount(few.flops, more.flops);
  all.kernels = amount(few.kernels, more.kernels);
  for (std::size_t i = 0; i < few.kernels_without.size(); ++i)
    all.kernels_without.push_back(amount(few.kernels_without[i], more.kernels_without[i]));
  return all;
}

}  // namespace tsprun::detail::theory
