// Counts what links carry over time, for traces: bytes by link and slice of virtual time. A run's end isn't known before, so the
// slices double their width whenever they don't reach far enough, and memory stays the same however long the run is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tsprun::detail::sim {

/// Bytes that each of several links carried in each slice of time.
class LinkRates {
 public:
  explicit LinkRates(std::size_t links) : slices_(std::clamp(kMostValues / (links + 1), kFewest, kMost) / 2 * 2), bytes_(links) {}

  /// Adds bytes that a link carries evenly from one time to another, in seconds from the beginning.
  void carry(std::uint32_t link, double begin, double end, double bytes) {
    while (end >= width_ * static_cast<double>(slices_)) double_width();
    std::vector<double>& of = bytes_[link];
    if (of.empty()) of.resize(slices_);
    const auto first = static_cast<std::size_t>(begin / width_);
    const auto last = static_cast<std::size_t>(end / width_);
    if (first == last) {
      of[first] += bytes;
      return;
    }
    const double rate = bytes / (end - begin);
    for (std::size_t i = first; i <= last; ++i) {
      const double from = std::max(begin, width_ * static_cast<double>(i));
      of[i] += rate * std::max(0.0, std::min(end, width_ * static_cast<double>(i + 1)) - from);
    }
  }
  /// Returns the seconds of a slice.
  double width() const { return width_; }
  /// Returns a link's bytes by slice; empty if it carried nothing.
  const std::vector<double>& of(std::size_t link) const { return bytes_[link]; }

 private:
  static constexpr std::size_t kMost = 2000;  // slices: as many as a screen shows
  static constexpr std::size_t kFewest = 16;
  static constexpr std::size_t kMostValues = std::size_t{1} << 22;  // of all links, which are 32 MB

  void double_width() {
    width_ *= 2;
    for (std::vector<double>& of : bytes_) {
      for (std::size_t i = 0; i < of.size(); ++i) {
        const double bytes = of[i];
        of[i] = 0;
        of[i / 2] += bytes;
      }
    }
  }

  std::size_t slices_;
  double width_ = 1e-6;
  std::vector<std::vector<double>> bytes_;
};

}  // namespace tsprun::detail::sim
