// Runs the stages of a loop at distances from each other. Schedules hide communication with it: what an item needs begins to move
// while earlier items are computed.
//
//   round          −1     0      1      2          look_ahead(3, {{1, fetch}, {0, compute}, {−1, finish}})
//   fetch          0      1      2                 one item ahead
//   compute               0      1      2
//   finish                       0      1  …       one item behind
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <initializer_list>

namespace tsprun::detail {

/// One stage of a loop over items.
struct Stage {
  int ahead;                              ///< the stage works with item (round + ahead); may be negative
  std::function<void(std::size_t)> work;  ///< called once for each item, in order
};

/// Calls each stage once for each of `items` items. Within a round the stages run in the order given, so list the stage that is
/// furthest ahead first.
inline void look_ahead(std::size_t items, std::initializer_list<Stage> stages) {
  const auto [behind, ahead] =
      std::minmax_element(stages.begin(), stages.end(), [](const Stage& a, const Stage& b) { return a.ahead < b.ahead; });
  const auto count = static_cast<std::ptrdiff_t>(items);
  for (std::ptrdiff_t round = -ahead->ahead; round < count - behind->ahead; ++round) {
    for (const Stage& stage : stages) {
      const std::ptrdiff_t item = round + stage.ahead;
      if (item >= 0 && item < count) stage.work(static_cast<std::size_t>(item));
    }
  }
}

}  // namespace tsprun::detail
