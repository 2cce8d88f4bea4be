// Checks whether a model can be cut as a layout says. Plans and runs share these checks, so they refuse the same layouts.
#pragma once

#include "layers/layout/layout.h"
#include "layers/layout/setting.h"

#include <cstddef>
#include <string>

namespace tsprun::detail {

/// Throws Error(refused) if the layout's axes don't go together, or the model's layers or heads can't be cut over its ranks; the
/// message says what works. Needs no rank.
void check_layout(const ModelConfig& config, const Layout& layout);

/// Returns why the sequences that a rank of the data axis has, of `batch` in all, can't be cut into so many equal parts, at least
/// 1, with numbers that work; empty if they can. The data axis must divide the batch.
std::string why_no_micro_batches(std::size_t batch, std::size_t micro_batches, const Layout& layout);

/// Returns why a model with its batch can't be cut like this for a training step, with a value that works and in the words of a
/// run's refusal; empty if it can.
std::string why_uncut(const Setting& setting, const Layout& layout);

/// Returns why nothing but training can be done with the layout; empty: all can.
std::string why_only_trained(const Layout& layout);

/// Returns why_uncut(), else why_only_trained(): why the model can't be spread like this where that is forecast.
std::string why_impossible(const Setting& setting, const Layout& layout);

}  // namespace tsprun::detail
