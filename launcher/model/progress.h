// How far a run is: on a terminal a bar that is redrawn in place, and above it a line every so often, so that the figures' course
// stays to be seen; elsewhere plain lines, at most one a second beside the first and the last.
#pragma once

#include "launcher/report_sink.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace tsprun::launcher {

/// "0:07", "12:30", "3:00:00"; "--" for what can't be told.
std::string duration_text(double seconds);
/// "[=====>    ]", `width` characters between the brackets.
std::string bar(double share, std::size_t width);

class Progress {
 public:
  enum class Style : std::uint8_t { silent, lines, terminal };

  /// `what` names a unit: "step". `first`: units that were done before this run.
  Progress(ReportSink& sink, Style style, std::string what, std::uint64_t total, std::uint64_t first = 0);

  /// `done` units are done, the last of which read `tokens` tokens; `figures` are its own, the most important first, two spaces
  /// between them: "loss 4.12  grad_norm 1.3".
  void update(std::uint64_t done, double tokens, std::string_view figures);

 private:
  /// Tokens since a moment.
  struct Window {
    std::uint64_t from_ns = 0;
    double tokens = 0;
    /// Tokens a second up to `now`; the next window begins there.
    double close(std::uint64_t now);
  };
  bool line_due(std::uint64_t done, std::uint64_t now) const;
  std::string fields(std::uint64_t done, std::string_view figures, double speed, double seconds_left) const;

  ReportSink& sink_;
  Style style_;
  std::string what_;
  std::uint64_t total_;
  std::uint64_t first_;
  std::uint64_t begun_ns_;
  Window since_line_;
  Window since_frame_;
};

}  // namespace tsprun::launcher
