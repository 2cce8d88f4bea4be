// Samples by temperature, top-k and top-p from logits sorted in double precision.
#include "layers/model/sampling.h"

#include "layers/io/philox.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace tsprun::detail {

namespace {

/// Calls visit(logits) with a span of their type.
template <class Visit>
auto with_values(const ConstTensor& logits, Visit&& visit) {
  return logits.dtype() == DType::f64 ? visit(logits.span<double>()) : visit(logits.span<float>());
}

void check(const ConstTensor& logits) {
  with_values(logits, [](const auto& values) {
    const auto nan = std::ranges::find_if(values, [](auto value) { return std::isnan(value); });
    if (nan == values.end()) return;
    throw Error(Cause::refused, fmt::format("the logit of token {} is NaN: the model diverged", nan - values.begin()));
  });
}

/// Returns a uniform number of 53 bits in [0, 1).
double uniform(std::uint64_t seed, std::uint64_t index) {
  constexpr std::uint64_t kSampling = 0x73616d706c696e67;  // separates these numbers from all others of the same seed
  return static_cast<double>(philox(seed, index, kSampling)[0] >> 11) * 0x1p-53;
}

}  // namespace

Token sample(const ConstTensor& logits, const SamplingOptions& options, std::uint64_t index, std::span<const Token> before) {
  check(logits);
  if (options.temperature == 0 && options.repetition_penalty == 1) {
    return with_values(logits,
                       [](const auto& values) { return static_cast<Token>(std::ranges::max_element(values) - values.begin()); });
  }
  struct Candidate {
    double logit;
    Token id;
  };
  std::vector<Candidate> candidates;
  candidates.reserve(logits.elements());
  with_values(logits, [&](const auto& values) {
    for (const auto value : values) candidates.push_back({static_cast<double>(value), static_cast<Token>(candidates.size())});
  });
  if (options.repetition_penalty != 1) {
    std::vector<bool> seen(candidates.size());
    for (const Token token : before) {
      const auto id = static_cast<std::size_t>(token);
      if (seen.at(id)) continue;
      seen[id] = true;
      double& logit = candidates[id].logit;
      logit = logit < 0 ? logit * options.repetition_penalty : logit / options.repetition_penalty;
    }
  }
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  if (options.temperature == 0) return std::ranges::min_element(candidates, likelier)->id;
  if (options.top_k != 0 && options.top_k < candidates.size()) {
    std::ranges::nth_element(candidates, candidates.begin() + static_cast<std::ptrdiff_t>(options.top_k), likelier);
    candidates.resize(options.top_k);
  }
  std::ranges::sort(candidates, likelier);
  const double highest = candidates[0].logit;
  std::vector<double> weights;
  for (const Candidate& candidate : candidates) weights.push_back(std::exp((candidate.logit - highest) / options.temperature));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);

  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * total)) kept += weights[count++];
  double left = uniform(options.seed, index) * kept;
  for (std::size_t i = 0; i < count; ++i) {
    left -= weights[i];
    if (left < 0) return candidates[i].id;
  }
  return candidates[count - 1].id;
}

}  // namespace tsprun::detail
