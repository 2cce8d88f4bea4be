// Checks heads, K/V heads and batch against a layout's degrees, and suggests degrees that work.
#include "layers/layout/check_layout.h"

#include "layers/layout/heads.h"
#include "layers/layout/slice.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace tsprun::detail {

namespace {

/// Returns whether TSP can cut each tensor rank's part again: in every part each K/V head is read by equally many query heads.
bool parts_are_alike(const ModelConfig& config, const LayerSpec& layer, int tensors) {
  for (int t = 0; t < tensors; ++t) {
    if (!BlockSlice::of(config, layer, {t, tensors}).uniform(config, layer)) return false;
  }
  return true;
}
bool parts_are_alike(const ModelConfig& config, int tensors) {
  return !config.specs.any([&](const LayerSpec& layer) { return !parts_are_alike(config, layer, tensors); });
}

/// Returns "tp=1 or tp=3": the degrees of the tensor axis nearest to `tensors` whose parts TSP can cut over `sequences` ranks.
std::string degrees_that_work(const ModelConfig& config, std::string_view axis, int tensors, int sequences) {
  const auto works = [&](int degree) {
    const auto cut = static_cast<std::size_t>(degree) * static_cast<std::size_t>(sequences);
    return config.query_heads % cut == 0 && parts_are_alike(config, degree);
  };
  int below = tensors - 1;
  while (below > 1 && !works(below)) --below;
  int above = tensors + 1;
  while (above <= static_cast<int>(config.query_heads) && !works(above)) ++above;
  const std::string higher = above <= static_cast<int>(config.query_heads) ? fmt::format(" or {}={}", axis, above) : "";
  return fmt::format("{}={}{}", axis, std::max(below, 1), higher);
}

/// Refuses stages, to which layers' own inputs aren't sent.
void check_layer_inputs(const ModelConfig& config, const Layout& layout) {
  if (layout.stages() == 1) return;
  const Layout without = layout.without(Cut::layers);
  throw Error(
      Cause::refused,
      fmt::format("{}={}: each layer of {} takes an input of its own, made with the embedding, which stages don't send "
                  "to each other; try --layout {}",
                  name(layout.stage_axis()), layout.stages(), config.name, without.axes.empty() ? "tsp=1" : without.print()));
}

/// Returns the first layer that takes k and v of a layer of another stage, if so many stages cut the model; none: no layer does.
std::optional<std::size_t> cut_from_its_lender(const ModelConfig& config, std::size_t stages) {
  for (std::size_t number = 0; number < stages; ++number) {
    const PipelineStage stage = PipelineStage::of(config.layers, stages, number);
    for (std::size_t layer = stage.first_layer; layer < stage.first_layer + stage.layers; ++layer) {
      if (!stage.has(config.lender_of(layer))) return layer;
    }
  }
  return {};
}

/// Refuses stages without the layers whose k and v theirs take.
void check_lenders(const ModelConfig& config, const Layout& layout) {
  const auto stages = static_cast<std::size_t>(layout.stages());
  const std::optional<std::size_t> cut = cut_from_its_lender(config, stages);
  if (!cut) return;
  std::size_t fewer = stages;
  while (--fewer > 1 && cut_from_its_lender(config, fewer)) {
  }
  const Layout without = layout.without(Cut::layers);
  throw Error(
      Cause::refused,
      fmt::format("{}={}: layer {} takes keys and values of layer {}, which is on another stage, and stages don't send those "
                  "to each other; try {}",
                  name(layout.stage_axis()), stages, *cut, config.lender_of(*cut),
                  fewer > 1 ? fmt::format("{}={}", name(layout.stage_axis()), fewer)
                            : fmt::format("--layout {}", without.axes.empty() ? "tsp=1" : without.print())));
}

}  // namespace

void check_layout(const ModelConfig& config, const Layout& layout) {
  if (const std::string why = layout.why_not(); !why.empty()) throw Error(Cause::refused, why);
  if (layout.sharing_axis() != layout.data_axis() && !layout.shares_states()) {
    throw Error(
        Cause::refused,
        fmt::format("{0}={1}: its ranks share what --{2} says, and {2} is plain; try --{2} zero1 or zero3, "
                    "or {2}={3}",
                    name(layout.sharing_axis()), layout.degree(layout.sharing_axis()), name(layout.data_axis()), layout.data()));
  }
  layout.stage(config.layers, 0);  // refuses more stages than layers
  if (config.layer_input > 0) check_layer_inputs(config, layout);
  if (config.lends()) check_lenders(config, layout);
  const int T = layout.tensor();
  config.specs.for_each([&](const LayerSpec& layer) { const HeadCut tensor(config.query_heads, config.kv_heads_of(layer), T); });
  const std::size_t queries = config.query_heads / static_cast<std::size_t>(T);
  const AxisRow& tokens = row_of(layout.token_axis());
  if (tokens.cuts_heads || layout.exchanges_heads()) {
    // K/V heads follow their query heads, so any number of them works.
    const HeadCut within(queries, queries, layout.sequence());
  }
  if (!tokens.cuts_heads || T == 1) return;
  config.specs.for_each([&](const LayerSpec& layer) {
    if (parts_are_alike(config, layer, T)) return;
    throw Error(Cause::refused,
                fmt::format("{0}={1} cuts between the query heads of a K/V head ({2} query heads, {3} K/V heads): it must divide "
                            "the K/V heads, or they must divide it, where {4} cuts its part again; try {5}",
                            name(layout.tensor_axis()), T, config.query_heads, config.kv_heads_of(layer), tokens.name,
                            degrees_that_work(config, name(layout.tensor_axis()), T, layout.sequence())));
  });
}

std::string why_no_micro_batches(std::size_t batch, std::size_t micro_batches, const Layout& layout) {
  const auto data = static_cast<std::size_t>(layout.data());
  const std::size_t own = batch / data;
  if (own % micro_batches == 0) return {};
  std::size_t fewer = std::min(micro_batches, own);
  while (own % fewer != 0) --fewer;
  const std::string what =
      data == 1 ? fmt::format("--batch {}", batch)
                : fmt::format("the {} sequences of --batch {} that each rank of {} has", own, batch, layout.print_data());
  return fmt::format("--micro-batches {} doesn't divide {}; try --micro-batches {} or --batch {}", micro_batches, what, fewer,
                     (own / micro_batches + 1) * micro_batches * data);
}

std::string why_uncut(const Setting& setting, const Layout& layout) {
  const auto data = static_cast<std::size_t>(layout.data());
  if (setting.batch % data != 0) {
    return fmt::format("{} doesn't divide --batch {}; try --batch {}", layout.print_data(), setting.batch,
                       (setting.batch / data + 1) * data);
  }
  if (std::string why = why_no_micro_batches(setting.batch, setting.micro_batches, layout); !why.empty()) return why;
  try {
    check_layout(setting.model, layout);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::string why_only_trained(const Layout& layout) {
  for (const Axis& axis : layout.axes) {
    const AxisRow& row = row_of(axis.kind);
    if (axis.degree == 1 || row.why_only_trained.empty()) continue;
    const Layout without = layout.without(row.cuts);
    return fmt::format(
        "{}={}: {}; {}", row.name, axis.degree, row.why_only_trained,
        without.axes.empty() ? fmt::format("leave {} out", row.name) : fmt::format("try --layout {}", without.print()));
  }
  return {};
}

std::string why_impossible(const Setting& setting, const Layout& layout) {
  std::string why = why_uncut(setting, layout);
  return why.empty() ? why_only_trained(layout) : why;
}

}  // namespace tsprun::detail
