// The formulas of the header, line by line.
#include "layers/parameters/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tsprun::detail {

std::uint64_t LearningRate::default_decay() const {
  const std::uint64_t after_warmup = steps - std::min(warmup, steps);
  constexpr std::uint64_t kStableParts = 10;
  return schedule == RateSchedule::wsd ? std::min(after_warmup, (steps + kStableParts - 1) / kStableParts) : after_warmup;
}

double LearningRate::at(std::uint64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  const std::uint64_t fall = decay != 0 ? decay : default_decay();
  const std::uint64_t gone = step - std::min(step, steps - std::min(fall, steps) + 1);
  if (schedule == RateSchedule::constant || gone == 0) return peak;
  const double x = static_cast<double>(gone) / static_cast<double>(fall);
  const double left = schedule == RateSchedule::cosine ? (1 + std::cos(std::numbers::pi * x)) / 2 : 1 - x;
  return least + (peak - least) * left;
}

}  // namespace tsprun::detail
