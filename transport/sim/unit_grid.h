// How units of ranks stand for one another where one of them is played for all (folding, sim_transport.h): they lie on a grid, as
// the ranks of a layout do, and each sees the others as unit 0 does, shifted.
#pragma once

#include <functional>
#include <numeric>
#include <vector>

namespace tsprun::detail::sim {

/// Equal units of consecutive ranks, numbered from 0, on axes of these sizes, outermost first; the last varies fastest. Numbers
/// of units are added axis by axis, modulo the axis's size, as on a torus.
///
///   unit 2, along {3}       ranks 0 1 │ 2 3 │ 4 5           unit 2, along {2, 3}    0 1 │ 2 3 │  4  5
///   unit 1 sees 4 as 0 sees 2, 0 as 0 sees 4                                        6 7 │ 8 9 │ 10 11
///                                                           unit 1 sees 10 as 0 sees 8, 6 as 0 sees 10
struct UnitGrid {
  int unit = 1;            ///< ranks of a unit
  std::vector<int> along;  ///< units along each axis

  /// Returns the number of units.
  int units() const { return std::accumulate(along.begin(), along.end(), 1, std::multiplies<>()); }
  /// Returns −`number`: the unit that gives unit 0 if `number` is added.
  int opposite(int number) const {
    int found = 0;
    int below = 1;  // units that lie together
    for (auto size = along.rbegin(); size != along.rend(); ++size) {
      found += (*size - number % *size) % *size * below;
      number /= *size;
      below *= *size;
    }
    return found;
  }
  /// Returns the rank in the place of `rank` in the unit that is the rank's own plus `number`.
  int shifted(int rank, int number) const {
    int from = rank / unit;
    int found = 0;
    int below = 1;
    for (auto size = along.rbegin(); size != along.rend(); ++size) {
      found += (from % *size + number % *size) % *size * below;
      from /= *size;
      number /= *size;
      below *= *size;
    }
    return found * unit + rank % unit;
  }
};

}  // namespace tsprun::detail::sim
