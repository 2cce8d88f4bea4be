// Samples by temperature, top-k and top-p from logits sorted in double precision.
#include "layers/model/sampling.h"

#include "layers/io/philox.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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

Token sample(const ConstTensor& logits, const SamplingOptions& options, std::uint64_t index) {
  check(logits);
  if (options.temperature == 0) {
    return with_values(logits,
                       [](const auto& values) { return static_cast<Token>(std::ranges::max_element(values) - values.begin()); });
  }
  const auto values =
      with_values(logits, [](const auto& of_type) { return std::vector<double>(of_type.begin(), of_type.end()); });
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  if (options.top_k != 0 && options.top_k < order.size()) order.resize(options.top_k);
  const double highest = values[order[0]];
  std::vector<double> weights;
  for (const std::size_t id : order) weights.push_back(std::exp((values[id] - highest) / options.temperature));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);

  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * total)) kept += weights[count++];
  double left = uniform(options.seed, index) * kept;
  for (std::size_t i = 0; i < count; ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<Token>(order[i]);
  }
  return static_cast<Token>(order[count - 1]);
}

}  // namespace tsprun::detail
