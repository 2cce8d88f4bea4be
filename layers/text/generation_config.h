// What a model's folder says of generating text: `generation_config.json`, as vLLM reads it. (transformers takes the likeliest
// token where `do_sample` is missing, and draws from 50 where `top_k` is.)
#pragma once

#include "layers/io/data.h"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::text {

/// Returns `eos_token_id`, one id or several, of the folder's generation_config.json or, if that is missing or names none, of its
/// config.json. Empty: no file names one. Throws Error(refused) for other values, with file, field and value.
std::vector<Token> end_tokens(const std::filesystem::path& folder);

/// Largest temperature and repetition penalty that are taken.
inline constexpr double kHottest = 1e6;
inline constexpr double kMostPenalty = 1e3;

/// How a model's authors want tokens to be drawn. What the file doesn't have is empty.
struct RecommendedSampling {
  std::optional<bool> draws;  ///< do_sample; false: always the likeliest token
  std::optional<double> temperature;
  std::optional<std::size_t> top_k;
  std::optional<double> top_p;
  std::optional<double> repetition_penalty;
  std::vector<std::string> ignored;  ///< "min_p 0.05": fields that would change the text and aren't heeded
};

/// Reads the folder's generation_config.json; without one all is empty. Values of another type, or out of range, are
/// ignored. Throws Error(refused) if it isn't an object.
RecommendedSampling recommended_sampling(const std::filesystem::path& folder);

}  // namespace tsprun::detail::text
