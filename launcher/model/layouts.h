// Turns --layout, --tp and --sp into the layout that computes a model. A layout that can't work is refused, with the
// option's name and what works.
#pragma once

#include "launcher/options.h"
#include "layers/io/config.h"
#include "layers/layout/layout.h"

#include <cstddef>
#include <string>

namespace tsprun::detail::launcher {

/// Returns the layout that computes a model: without axes of one rank, with the variants of --tp and --sp. Throws Error(refused)
/// as tensor_exchange() and sequence_exchange() do.
Layout layout_of(const GlobalOptions& global);
/// Returns the variant that --tp chooses; plain if the tp axis has degree 1. Throws Error(refused) if there is no such variant,
/// or the layout has no tp axis for it.
TensorExchange tensor_exchange(const GlobalOptions& global);
/// Returns the variant that --sp chooses; gather if the sp axis has degree 1. Throws Error(refused) if there is no such variant,
/// or the layout has no sp axis for it.
SequenceExchange sequence_exchange(const GlobalOptions& global);

/// Throws Error(refused) unless the model's heads can be divided as the layout says.
void check_heads(const GlobalOptions& global, const ModelConfig& config);
/// Throws Error(refused) unless --batch is a multiple of dp's degree.
void check_batch(const GlobalOptions& global, std::size_t batch);
/// Throws Error(refused) for a layout with dp of more than 1 rank. `why`: the reason that the message gives.
void refuse_data_axis(const GlobalOptions& global, const std::string& why);

/// Returns how the user chose the number of ranks, for messages: "--layout tsp=6", "-n 6".
std::string ranks_as_typed(const GlobalOptions& global);

}  // namespace tsprun::detail::launcher
