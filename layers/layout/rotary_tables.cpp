// Allocates and fills the tables of rotations.
#include "layers/layout/rotary_tables.h"

#include "core/kernels/check.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace tsprun::detail {

namespace {

/// Returns what the cosines and sines at each position are multiplied by; empty if by nothing.
std::vector<double> factors_at(std::span<const std::int64_t> positions, const RopeScaling& scaling, double growth) {
  if (scaling.attention_factor == 1 && growth == 0) return {};
  std::vector<double> factors(positions.size(), scaling.attention_factor);
  for (std::size_t i = 0; growth > 0 && i < factors.size(); ++i) {
    const std::int64_t times = positions[i] / static_cast<std::int64_t>(scaling.original_positions);
    factors[i] *= 1 + growth * std::log1p(static_cast<double>(times));
  }
  return factors;
}

}  // namespace

RotaryTables::RotaryTables(Rank& rank, const ModelConfig& config, DType dtype, std::size_t tokens, std::size_t longest)
    : rank_(rank),
      config_(config),
      pairs_(config.interleaved_rotary ? kernels::RotaryPairs::neighbours : kernels::RotaryPairs::halves) {
  const auto make = [&](const LayerSpec& layer) {
    const std::size_t r = config.rotary_dims(layer);
    const RopeScaling scaling = layer.local_rotary ? RopeScaling() : config.rope_scaling;
    const auto table = [&] { return rank.tensor(Category::workspace, kernels::summed_in(dtype), {tokens, r}, "RoPE table"); };
    Kind& kind = kinds_.emplace_back(Kind{
        .local = layer.local_rotary,
        .dims = r,
        .frequencies = rope_frequencies(layer.local_rotary ? config.local_rope_theta : config.rope_theta, scaling, r, longest),
        .scaling = scaling,
        .keys = table(),
        .queries = {}});
    if (scaling.query_growth == 0) return;
    // What grows is in the queries' table, so it would miss dims that stay.
    if (r != config.head_dim_of(layer)) throw std::logic_error("queries whose scale grows, and that turn in part");
    kind.queries = table();
  };
  for (const bool local : {false, true}) {
    config.specs.for_each([&](const LayerSpec& layer) {
      if (layer.rotary_positions && layer.local_rotary == local && kind_of(layer) == nullptr) make(layer);
    });
  }
}

/// Returns the tables of a layer's kind; null if there are none.
const RotaryTables::Kind* RotaryTables::kind_of(const LayerSpec& layer) const {
  const std::size_t dims = config_.rotary_dims(layer);
  const auto found =
      std::ranges::find_if(kinds_, [&](const Kind& kind) { return kind.local == layer.local_rotary && kind.dims == dims; });
  return found == kinds_.end() ? nullptr : &*found;
}

void RotaryTables::fill(std::span<const std::int64_t> positions) const {
  for (const Kind& kind : kinds_) {
    const auto fill_one = [&](const OwnedTensor& table, double growth) {
      if (table.exists())
        rank_.compute().rope_table(table, positions, kind.frequencies, factors_at(positions, kind.scaling, growth));
    };
    fill_one(kind.keys, 0);
    fill_one(kind.queries, kind.scaling.query_growth);
  }
}

Rotations RotaryTables::of(const LayerSpec& layer) const {
  const Kind* const kind = layer.rotary_positions ? kind_of(layer) : nullptr;
  if (kind == nullptr) return {};
  const Tensor keys = kind->keys;
  return {.queries = kind->queries.exists() ? kind->queries.view() : keys, .keys = keys, .pairs = pairs_};
}

}  // namespace tsprun::detail
