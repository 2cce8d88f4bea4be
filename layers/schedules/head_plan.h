// Chooses between the two ways to compute the output head where its rows are cut over the ranks of an axis.
#pragma once

#include "layers/layout/setting.h"

#include <cstdint>

namespace tsprun::detail {

/// The two ways to compute the output head: rotate the vocabulary's shards, or gather the tokens' activations.
enum class HeadPlan : std::uint8_t { rotate_weights, gather_activations };
/// Returns the plan that moves fewer bytes. Activations are gathered iff BS·(h(2β+β_a) + 2β_l) < V·h·(2β+β_a). The same plan is
/// used forward and backward.
HeadPlan head_plan(const Setting& setting);

}  // namespace tsprun::detail
