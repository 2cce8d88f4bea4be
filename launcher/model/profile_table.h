// Where the time of a run's ranks went, for `--profile`: gathered from all ranks, reported as JSON, and printed as the kernels
// and waits that took longest.
#pragma once

#include "core/context.h"
#include "core/trace/profile.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Adds up the profiles of all ranks. Collective over the world. Returns on rank 0 the report's `profile`: all kernels and waits,
/// the longest first, with the seconds of all ranks together; null on the others.
nlohmann::ordered_json gather_profiles(Context& context, const Profile& mine);

/// Returns the lines of a table with the kernels and waits of `profile` that took longest, in lines of at most `columns`
/// characters. Seconds and calls are a rank's, on average.
std::vector<std::string> profile_lines(const nlohmann::ordered_json& profile, std::size_t columns);

}  // namespace tsprun::detail::launcher
