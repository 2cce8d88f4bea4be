// Windows of layers in a config.json: sliding_window, use_sliding_window, max_window_layers, sliding_window_pattern and
// layer_types. Which of them a
// family has, and what a file without them means, its WindowField says.
#pragma once

#include "layers/io/config.h"
#include "layers/io/config_fields.h"

#include <nlohmann/json.hpp>

namespace tsprun::detail {

/// Reads the windows of a family's layers, whose number and rotation are known, into `config`. Throws Error(refused), naming the
/// field, for what the family's WindowField or the fields among themselves contradict.
void read_windows(ConfigFields& fields, ModelConfig& config);
/// Writes into a config.json the windows that it doesn't state yet.
void write_windows(const ModelConfig& config, nlohmann::json& object);

}  // namespace tsprun::detail
