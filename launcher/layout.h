// The layout of a job: named axes with degrees, outermost first ("dp=2,tp=2,sp=4"). The last axis varies fastest over ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::launcher {

/// One axis and the number of ranks along it.
struct Axis {
  std::string name;
  int degree = 1;
};

/// Axes with their degrees, outermost first.
struct Layout {
  std::vector<Axis> axes;

  /// Returns the number of ranks.
  int product() const;
  /// Returns the degree of an axis; 1 if the layout doesn't name it.
  int degree(std::string_view axis) const;
  /// Returns true if the layout names the axis, with whatever degree.
  bool has(std::string_view axis) const;
  /// Returns the layout as it is typed.
  std::string print() const;
};

/// Parses a layout. Axes: dp (only as the first), and one of: tsp; zero3; tp and sp in any order; tp and tsp. Throws
/// Error(Cause::refused) naming the part that is wrong and what would work.
Layout parse_layout(const std::string& text);

/// Returns the layout that `-n N` alone means: tsp=N.
Layout default_layout(int ranks);

}  // namespace tsprun::launcher
