// The layout of a job: named axes with degrees, outermost first ("dp=2,tp=2,sp=4"); the last varies fastest over ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::launcher {

struct Axis {
  std::string name;
  int degree = 1;
};

struct Layout {
  std::vector<Axis> axes;

  /// The number of ranks.
  int product() const;
  /// Of an axis; 1 if it isn't named.
  int degree(std::string_view axis) const;
  /// The axis is named, of whatever degree.
  bool has(std::string_view axis) const;
  /// As it is typed.
  std::string print() const;
};

/// Axes dp (only first), and one of: tsp; zero3; tp and sp in any mix; tp and tsp. Throws Error(Cause::refused) naming the part
/// that is wrong and what would work.
Layout parse_layout(const std::string& text);

/// The layout that `-n N` alone means.
Layout default_layout(int ranks);

}  // namespace tsprun::launcher
