// Decides when a line or a bar is due, and computes speed and remaining time.
#include "launcher/model/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tsprun::detail::launcher {

namespace {
constexpr std::uint64_t kBetweenLines_ns = 1'000'000'000;
constexpr std::uint64_t kBetweenHistory_ns = 2'000'000'000;
constexpr std::uint64_t kBetweenFrames_ns = 100'000'000;
constexpr std::size_t kBarWidth = 20;
}  // namespace

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "--";
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string bar(double share, std::size_t width) {
  const double whole = std::clamp(std::isfinite(share) ? share : 0.0, 0.0, 1.0) * static_cast<double>(width);
  const auto filled = static_cast<std::size_t>(whole);
  std::string text(filled, '=');
  if (filled < width) text += '>';
  text.resize(width, ' ');
  return "[" + text + "]";
}

ProgressLine::ProgressLine(ReportSink& sink, Style style, std::string what, std::uint64_t total, std::uint64_t first,
                           std::uint64_t every, const Clock& clock)
    : clock_(clock),
      sink_(sink),
      style_(style),
      what_(std::move(what)),
      total_(total),
      first_(first),
      every_(every),
      begun_ns_(clock_.now_ns()),
      since_line_{.from_ns = begun_ns_},
      since_frame_{.from_ns = begun_ns_} {}

double ProgressLine::Window::close(std::uint64_t now) {
  const double speed = tokens / std::max(static_cast<double>(now - from_ns) * 1e-9, 1e-9);
  *this = {.from_ns = now};
  return speed;
}

/// Returns true for the first line, the last one, and whenever one is due, by number or by the clock. On a terminal, which has a
/// bar below, lines become ever rarer: about twenty in the first minute, about sixty in an hour.
bool ProgressLine::line_due(std::uint64_t done, std::uint64_t now) const {
  if (done >= total_) return true;
  if (every_ != 0) return done == first_ + 1 || done % every_ == 0;
  const std::uint64_t waited = now - since_line_.from_ns;
  if (style_ == Style::lines) return done == first_ + 1 || waited >= kBetweenLines_ns;
  return waited >= std::max(kBetweenHistory_ns, (now - begun_ns_) / 10);
}

std::string ProgressLine::fields(std::uint64_t done, std::string_view figures, double speed, double seconds_left) const {
  const std::size_t end = std::min(figures.find("  "), figures.size());
  const double share = static_cast<double>(done) / static_cast<double>(std::max<std::uint64_t>(total_, 1));
  std::string text(figures.substr(0, end));
  text += fmt::format("{}{} {}/{}\t{:.0f} tokens/s\t{}\tETA {}", text.empty() ? "" : "\t", what_, done, total_, speed,
                      bar(share, kBarWidth), duration_text(seconds_left));
  for (std::string_view rest = figures.substr(end); rest.size() > 2;) {
    rest.remove_prefix(2);
    const std::size_t next = std::min(rest.find("  "), rest.size());
    text += fmt::format("\t{}", rest.substr(0, next));
    rest.remove_prefix(next);
  }
  return text;
}

void ProgressLine::update(std::uint64_t done, double tokens, std::string_view figures) {
  since_line_.tokens += tokens;
  since_frame_.tokens += tokens;
  if (style_ == Style::silent) return;
  const std::uint64_t now = clock_.now_ns();
  if (line_due(done, now)) {
    const int digits = static_cast<int>(std::to_string(total_).size());
    sink_.line(fmt::format("{} {:>{}}/{}  {}  {:.0f} tokens/s", what_, done, digits, total_, figures, since_line_.close(now)));
  }
  if (style_ != Style::terminal || done >= total_) return;
  if (done != first_ + 1 && now - since_frame_.from_ns < kBetweenFrames_ns) return;
  const double elapsed = static_cast<double>(now - begun_ns_) * 1e-9;
  const double left = done <= first_ ? -1.0 : elapsed / static_cast<double>(done - first_) * static_cast<double>(total_ - done);
  sink_.progress(fields(done, figures, since_frame_.close(now), left));
}

}  // namespace tsprun::detail::launcher
