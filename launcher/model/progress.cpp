#include "launcher/model/progress.h"

#include "transport/posix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tsp::launcher {

namespace {
constexpr std::uint64_t kBetweenLines_ns = 1'000'000'000;
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

Progress::Progress(ReportSink& sink, Style style, std::string what, std::uint64_t total, std::uint64_t first)
    : sink_(sink),
      style_(style),
      what_(std::move(what)),
      total_(total),
      first_(first),
      begun_ns_(posix::now_ns()),
      measured_from_ns_(begun_ns_) {}

void Progress::update(std::uint64_t done, double tokens, std::string_view figures) {
  tokens_ += tokens;
  if (style_ == Style::silent) return;
  const std::uint64_t now = posix::now_ns();
  const bool due = now - shown_ns_ >= (style_ == Style::terminal ? kBetweenFrames_ns : kBetweenLines_ns);
  const bool end = done == first_ + 1 || done >= total_;
  if (!due && !end) return;

  const double speed = tokens_ / std::max(static_cast<double>(now - measured_from_ns_) * 1e-9, 1e-9);
  const double elapsed = static_cast<double>(now - begun_ns_) * 1e-9;
  const double left =
      done <= first_ ? -1.0 : elapsed / static_cast<double>(done - first_) * static_cast<double>(total_ - std::min(done, total_));
  const int digits = static_cast<int>(std::to_string(total_).size());
  const std::string text = fmt::format("{} {:>{}}/{}  {}  {:.0f} tokens/s", what_, done, digits, total_, figures, speed);
  if (style_ == Style::terminal && done < total_) {
    const double share = static_cast<double>(done) / static_cast<double>(std::max<std::uint64_t>(total_, 1));
    // The ends of lines are cut on narrow terminals.
    sink_.progress(fmt::format("{} ETA {}  {}", bar(share, kBarWidth), duration_text(left), text));
  } else {
    sink_.line(text);
  }
  shown_ns_ = now;
  measured_from_ns_ = now;
  tokens_ = 0;
}

}  // namespace tsp::launcher
