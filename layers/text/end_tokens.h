// The ids that end a text, as a model's folder says.
#pragma once

#include "layers/io/data.h"

#include <filesystem>
#include <vector>

namespace tsprun::detail::text {

/// Returns `eos_token_id`, one id or several, of the folder's generation_config.json or, if that is missing or names none, of its
/// config.json; empty: no id ends a text. Throws Error(refused) if a file can't be read, or the field holds
/// something else.
std::vector<Token> end_tokens(const std::filesystem::path& folder);

}  // namespace tsprun::detail::text
