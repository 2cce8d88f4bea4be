// What rank 0 of a built-in command says about its results, put into the report: the launcher's side of report_sink.h.
#pragma once

#include "launcher/report_sink.h"

#include <nlohmann/json.hpp>

namespace tsprun::launcher {

/// Puts what a frame of kind 'J' or 'A' says into the report; what isn't an object, or is nested deeper than any report, is left
/// out.
void merge_results(nlohmann::ordered_json& report, const FrameReader::Frame& frame);

}  // namespace tsprun::launcher
