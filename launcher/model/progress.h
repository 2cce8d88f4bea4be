// Shows how far a run is. On a terminal: a bar that is redrawn in place, and above it a line every so often, so that earlier
// figures stay visible. Elsewhere: plain lines, at most one a second besides the first and the last. Or lines every so many
// units.
#pragma once

#include "launcher/report_sink.h"
#include "transport/clock.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace tsprun::detail::launcher {

/// Returns a duration as "0:07", "12:30" or "3:00:00"; "--" if it is negative, not finite or longer than 1e9 s.
std::string duration_text(double seconds);
/// Returns a bar such as "[=====>    ]" for a share from 0 to 1, with `width` characters between the brackets.
std::string bar(double share, std::size_t width);

/// Progress of one run, updated after every unit of work.
class ProgressLine {
 public:
  /// Output of progress: none, lines, or lines and a bar on a terminal.
  enum class Style : std::uint8_t { silent, lines, terminal };

  /// Starts the clock. `what`: name of a unit, such as "step". `total`: units in all. `first`: units that were done before this
  /// run. `every`: units between lines; 0: the clock says when. `clock` is borrowed.
  ProgressLine(ReportSink& sink, Style style, std::string what, std::uint64_t total, std::uint64_t first = 0,
               std::uint64_t every = 0, const Clock& clock = real_clock());

  /// Notes that `done` units are done, and prints if it is time to. `tokens`: tokens that the last unit read. `figures`: the last
  /// unit's figures, the most important first, separated by two spaces: "loss 4.12  grad_norm 1.3".
  void update(std::uint64_t done, double tokens, std::string_view figures);

 private:
  /// Tokens counted since a point in time.
  struct Window {
    std::uint64_t from_ns = 0;
    double tokens = 0;
    /// Returns tokens per second up to `now`, and starts the next window there.
    double close(std::uint64_t now);
  };
  bool line_due(std::uint64_t done, std::uint64_t now) const;
  std::string fields(std::uint64_t done, std::string_view figures, double speed, double seconds_left) const;

  const Clock& clock_;
  ReportSink& sink_;
  Style style_;
  std::string what_;
  std::uint64_t total_;
  std::uint64_t first_;
  std::uint64_t every_;
  std::uint64_t begun_ns_;
  Window since_line_;
  Window since_frame_;
};

}  // namespace tsprun::detail::launcher
