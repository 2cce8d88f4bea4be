// Puts what rank 0 of a built-in command sent (report_sink.h) into the report: the launcher's side.
#pragma once

#include "launcher/report_sink.h"

#include <nlohmann/json.hpp>

namespace tsprun::detail::launcher {

/// Merges a frame of kind 'J' or 'A' into the report. JSON that isn't an object, or is nested deeper than 64 levels, is left out.
void merge_results(nlohmann::ordered_json& report, const FrameReader::Frame& frame);

}  // namespace tsprun::detail::launcher
