// How far a run is: on a terminal a bar that is redrawn in place, elsewhere plain lines, at most one a second beside the first
// and the last.
#pragma once

#include "launcher/report_sink.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace tsp::launcher {

/// "0:07", "12:30", "3:00:00"; "--" for what can't be told.
std::string duration_text(double seconds);
/// "[=====>    ]", `width` characters between the brackets.
std::string bar(double share, std::size_t width);

class Progress {
 public:
  enum class Style : std::uint8_t { silent, lines, terminal };

  /// `what` names a unit: "step". `first`: units that were done before this run.
  Progress(ReportSink& sink, Style style, std::string what, std::uint64_t total, std::uint64_t first = 0);

  /// `done` units are done, the last of which read `tokens` tokens; `figures` are its own: "loss 4.12".
  void update(std::uint64_t done, double tokens, std::string_view figures);

 private:
  ReportSink& sink_;
  Style style_;
  std::string what_;
  std::uint64_t total_;
  std::uint64_t first_;
  std::uint64_t begun_ns_;
  std::uint64_t shown_ns_ = 0;
  std::uint64_t measured_from_ns_;
  double tokens_ = 0;  // since measured_from_ns_
};

}  // namespace tsp::launcher
