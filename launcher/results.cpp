// Parses frames with a limit on nesting.
#include "launcher/results.h"

namespace tsprun::detail::launcher {

using nlohmann::ordered_json;

void merge_results(ordered_json& report, const FrameReader::Frame& frame) {
  // Writing the report recurses as deep as it is nested.
  constexpr int kMostDepth = 64;
  const auto shallow = [](int depth, ordered_json::parse_event_t, ordered_json&) { return depth < kMostDepth; };
  const ordered_json values = ordered_json::parse(frame.payload, shallow, false);
  if (!values.is_object()) return;
  for (const auto& [key, value] : values.items()) {
    if (frame.kind == 'J') {
      report[key] = value;
    } else if (frame.kind == 'A') {
      ordered_json& list = report[key];
      if (!list.is_array()) list = ordered_json::array();
      list.push_back(value);
    }
  }
}

}  // namespace tsprun::detail::launcher
