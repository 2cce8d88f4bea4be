// Layouts of one axis each, from the table of axes: tests that take them try a new axis and a new variant, too.
#pragma once

#include "layers/layout/layout.h"

#include <cstddef>
#include <vector>

namespace tsprun::detail::test {

/// Returns a layout of `ranks` (2 or more) ranks for each variant of each axis that does more than train, followed by `others`.
inline std::vector<Layout> each_axis(int ranks, const std::vector<Layout>& others = {}) {
  std::vector<Layout> layouts;
  for (const AxisRow& row : kAxes) {
    if (!row.why_only_trained.empty() || !row.searched) continue;
    const Layout usual{{{row.kind, ranks}}};
    layouts.push_back(usual);
    for (std::size_t variant = 1; variant < row.variants.size(); ++variant) layouts.push_back(usual.with(row.kind, variant));
  }
  layouts.insert(layouts.end(), others.begin(), others.end());
  return layouts;
}

}  // namespace tsprun::detail::test
