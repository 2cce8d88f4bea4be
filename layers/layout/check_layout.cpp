// Checks heads, K/V heads and batch against a layout's degrees, and suggests degrees that work.
#include "layers/layout/check_layout.h"

#include "layers/layout/heads.h"
#include "layers/layout/slice.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace tsprun::detail {

namespace {

/// Returns whether TSP can cut each tensor rank's part again: in every part each K/V head is read by equally many query heads.
bool parts_are_alike(const ModelConfig& config, int tensors) {
  for (int t = 0; t < tensors; ++t) {
    if (!BlockSlice::of(config, t, tensors).uniform(config)) return false;
  }
  return true;
}

/// Returns "tp=1 or tp=3": the degrees nearest to `tensors` whose parts TSP can cut over `sequences` ranks.
std::string degrees_that_work(const ModelConfig& config, int tensors, int sequences) {
  const auto works = [&](int degree) {
    const auto cut = static_cast<std::size_t>(degree) * static_cast<std::size_t>(sequences);
    return config.query_heads % cut == 0 && parts_are_alike(config, degree);
  };
  int below = tensors - 1;
  while (below > 1 && !works(below)) --below;
  int above = tensors + 1;
  while (above <= static_cast<int>(config.query_heads) && !works(above)) ++above;
  const std::string higher = above <= static_cast<int>(config.query_heads) ? fmt::format(" or tp={}", above) : "";
  return fmt::format("tp={}{}", std::max(below, 1), higher);
}

}  // namespace

void check_layout(const ModelConfig& config, const Layout& layout) {
  if (const std::string why = layout.why_not(); !why.empty()) throw Error(Cause::refused, why);
  const int T = layout.tensor();
  const HeadCut tensor(config.query_heads, config.kv_heads, T);
  const std::size_t queries = config.query_heads / static_cast<std::size_t>(T);
  if (layout.scheme() == Scheme::tsp || layout.exchanges_heads()) {
    // K/V heads follow their query heads, so any number of them works.
    const HeadCut within(queries, queries, layout.sequence());
  }
  if (layout.scheme() == Scheme::tsp && T > 1 && !parts_are_alike(config, T)) {
    throw Error(Cause::refused,
                fmt::format("tp={} cuts between the query heads of a K/V head ({} query heads, {} K/V heads): it must divide the "
                            "K/V heads, or they must divide it, where tsp cuts its part again; try {}",
                            T, config.query_heads, config.kv_heads, degrees_that_work(config, T, layout.sequence())));
  }
}

std::string why_impossible(const Setting& setting, const Layout& layout) {
  const auto data = static_cast<std::size_t>(layout.data());
  if (setting.batch % data != 0) {
    return fmt::format("dp={} doesn't divide --batch {}; try --batch {}", data, setting.batch, (setting.batch / data + 1) * data);
  }
  try {
    check_layout(setting.model, layout);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace tsprun::detail
