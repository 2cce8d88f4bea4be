// Turns --layout, --dp, --tp and --sp into the layout that computes a model. A layout that can't work is refused, with the
// option's name and what works.
#pragma once

#include "launcher/options.h"
#include "layers/io/config.h"
#include "layers/layout/layout.h"

#include <cstddef>
#include <string>

namespace tsprun::detail::launcher {

/// Returns the layout that computes a model: without axes of one rank, with the variants that --dp, --tp and --sp choose. Throws
/// Error(refused) as chosen_variant() does.
Layout layout_of(const GlobalOptions& global);
/// Returns the same with its axes of one rank.
Layout layout_as_typed(const GlobalOptions& global);
/// Returns the variant that an axis's option chooses; the default if the axis has degree 1. Throws Error(refused) if the layout
/// has no such axis for it.
std::size_t chosen_variant(const GlobalOptions& global, const AxisRow& row);

/// Throws Error(refused) unless the model's heads can be divided as the layout says.
void check_heads(const GlobalOptions& global, const ModelConfig& config);
/// Throws Error(refused) unless --batch is a multiple of dp's degree times --micro-batches.
void check_batch(const GlobalOptions& global, std::size_t batch, std::size_t micro_batches);
/// Throws Error(refused) for a layout with dp of more than 1 rank. `why`: the reason that the message gives.
void refuse_data_axis(const GlobalOptions& global, const std::string& why);

}  // namespace tsprun::detail::launcher
