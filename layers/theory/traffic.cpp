// The rows of the table "Exact traffic" (docs/algorithms.md) for embedding and head.
#include "layers/theory/traffic.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace tsprun::detail::theory {

std::uint64_t PurposeBytes::total() const { return std::accumulate(bytes_.begin(), bytes_.end(), std::uint64_t{0}); }

PurposeBytes& PurposeBytes::operator+=(const PurposeBytes& other) {
  for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] += other.bytes_[i];
  return *this;
}

PurposeBytes PurposeBytes::received(const TrafficCounters& counters) {
  PurposeBytes bytes;
  std::copy_n(counters.received, kPurposes, bytes.bytes_.begin());
  return bytes;
}

Traffic& Traffic::operator+=(const Traffic& other) {
  forward += other.forward;
  backward += other.backward;
  return *this;
}

Traffic head(const Setting& setting, int ranks, HeadPlan plan, bool gathered_kept) {
  const auto& [element, accumulated, lse] = setting.bytes;
  Traffic traffic;
  if (plan == HeadPlan::rotate_weights) {
    const std::uint64_t weights = setting.model.vocabulary * setting.model.hidden * hops(ranks);
    traffic.forward[Purpose::head] = weights * element;
    traffic.backward[Purpose::head] = weights * (element + accumulated);
  } else {
    const std::uint64_t x = setting.hidden_elements() * hops(ranks);
    traffic.forward[Purpose::head] = x * element + setting.tokens() * 2 * lse * hops(ranks);
    traffic.backward[Purpose::head] = x * ((gathered_kept ? 0 : element) + accumulated);
  }
  return traffic;
}

Traffic tp_embedding(const Setting& setting, int ranks) {
  Traffic traffic;
  traffic.forward[Purpose::embedding] = 2 * setting.hidden_elements() * setting.bytes.element * hops(ranks);
  return traffic;
}

Traffic tp_head(const Setting& setting, int ranks) {
  Traffic traffic;
  traffic.forward[Purpose::head] = 2 * setting.tokens() * setting.bytes.lse * hops(ranks);
  traffic.backward[Purpose::head] = 2 * setting.hidden_elements() * setting.bytes.element * hops(ranks);
  return traffic;
}

double tsp_tp_break_even(const Setting& setting, bool with_backward) {
  const auto beta = static_cast<double>(setting.bytes.element);
  const auto h = static_cast<double>(setting.model.hidden);
  // Bytes moved for a weight and for a K/V element under TSP, divided by ρ. TP moves 4h elements per token and pass.
  const double moved = with_backward ? 2 * beta + static_cast<double>(setting.bytes.accumulated) : beta;
  // Of all layers, or of one if their sizes are equal.
  const ModelConfig& model = setting.model;
  const std::size_t layers = model.has_sizes_of(model.layer(0)) ? 1 : model.layers;
  const auto sum = [&](auto&& count) { return static_cast<double>(model.specs.sum(0, layers, count)); };
  const double kv = sum([&](const LayerSpec& layer) { return std::uint64_t{model.kv_width(layer)}; });
  const double parameters = sum([&](const LayerSpec& layer) { return setting.block_parameters(layer); });
  const double per_token = 4 * h * static_cast<double>(layers) * beta * (with_backward ? 2 : 1) - 2 * kv * moved;
  if (per_token <= 0) return std::numeric_limits<double>::infinity();
  return parameters * moved / per_token;
}

}  // namespace tsprun::detail::theory
