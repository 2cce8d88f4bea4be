// Allocates and fills the tables of rotations.
#include "layers/layout/rotary_tables.h"

#include "core/kernels/check.h"

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
    : rank_(rank), pairs_(config.interleaved_rotary ? kernels::RotaryPairs::neighbours : kernels::RotaryPairs::halves) {
  const std::size_t r = config.rotary_dims();
  const auto make = [&](Kind& kind, double theta, const RopeScaling& scaling) {
    const auto table = [&] { return rank.tensor(Category::workspace, kernels::summed_in(dtype), {tokens, r}, "RoPE table"); };
    kind.frequencies = rope_frequencies(theta, scaling, r, longest);
    kind.scaling = scaling;
    kind.keys = table();
    if (scaling.query_growth == 0) return;
    // What grows is in the queries' table, so it would miss dims that stay.
    if (r != config.head_dim) throw std::logic_error("queries whose scale grows, and that turn in part");
    kind.queries = table();
  };
  const auto any = [&](bool local) {
    return config.specs.any([&](const LayerSpec& layer) { return layer.rotary_positions && layer.local_rotary == local; });
  };
  if (any(false)) make(kinds_[0], config.rope_theta, config.rope_scaling);
  if (any(true)) make(kinds_[1], config.local_rope_theta, {});
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
  const Kind& kind = kinds_[layer.local_rotary ? 1 : 0];
  if (!layer.rotary_positions || !kind.keys.exists()) return {};
  return {.queries = kind.queries.exists() ? kind.queries.view() : kind.keys.view(), .keys = kind.keys.view(), .pairs = pairs_};
}

}  // namespace tsprun::detail
