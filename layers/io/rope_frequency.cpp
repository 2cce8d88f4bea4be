// Computes the frequencies of rotary positions.
#include "layers/io/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tsprun::detail {

namespace {

using RopeKind = RopeScaling::Kind;

}  // namespace

double rope_frequency(double theta, const RopeScaling& scaling, std::size_t dims, std::size_t pair, std::size_t longest) {
  const double frequency = std::pow(theta, -2 * static_cast<double>(pair) / static_cast<double>(dims));
  const auto original = static_cast<double>(scaling.original_positions);
  const auto mixed = [&](double kept) { return (1 - kept) * frequency / scaling.factor + kept * frequency; };
  switch (scaling.kind) {
    case RopeKind::none: return frequency;
    case RopeKind::linear: return frequency / scaling.factor;
    case RopeKind::proportional: {
      const auto turned = static_cast<std::size_t>(scaling.turned_part * static_cast<double>(dims) / 2);
      return pair < turned ? frequency / scaling.factor : 0;
    }
    case RopeKind::longrope:
      return frequency / (longest > scaling.original_positions ? scaling.long_factors : scaling.short_factors).at(pair);
    case RopeKind::llama3: {
      const double waves = original * frequency / (2 * std::numbers::pi);
      const double low = scaling.low_frequency_factor;
      return mixed(std::clamp((waves - low) / (scaling.high_frequency_factor - low), 0.0, 1.0));
    }
    case RopeKind::yarn: break;
  }
  // The pair, as a real number, that turns so many times in the original context.
  const auto pair_that_turns = [&](double times) {
    return static_cast<double>(dims) * std::log(original / (times * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double first = pair_that_turns(scaling.beta_fast);
  double last = pair_that_turns(scaling.beta_slow);
  if (scaling.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(dims) - 1);
  if (first == last) last += 0.001;  // as transformers has it
  return mixed(1 - std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0));
}

std::vector<double> rope_frequencies(double theta, const RopeScaling& scaling, std::size_t dims, std::size_t longest) {
  std::vector<double> frequencies(dims / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = rope_frequency(theta, scaling, dims, i, longest);
  return frequencies;
}

}  // namespace tsprun::detail
