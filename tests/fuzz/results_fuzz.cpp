// Any bytes on the pipe by which rank 0 hands over its results: frames, in whatever pieces they come, that make a report which
// can be written; or the channel's end.
#include "launcher/report_sink.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tsprun::detail::launcher;
  if (size == 0) return 0;
  const std::size_t piece = 1 + data[0];
  std::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
  FrameReader frames;
  nlohmann::ordered_json report = nlohmann::ordered_json::object();
  while (!rest.empty()) {
    const bool whole = frames.feed(rest.substr(0, piece));
    rest.remove_prefix(std::min(piece, rest.size()));
    for (FrameReader::Frame frame; frames.next(frame);) {
      if (!whole || frame.payload.size() > kMaxFrame) std::abort();
      merge_results(report, frame);
    }
  }
  if (!report.is_object()) std::abort();
  const std::string text = report.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (nlohmann::ordered_json::parse(text, nullptr, false).is_discarded()) std::abort();
  return 0;
}
