// Splits the lists of a sweep, and forms all combinations.
#include "launcher/model/sweep.h"

#include "launcher/model/layouts.h"
#include "launcher/refuse.h"
#include "launcher/values.h"
#include "layers/io/config.h"
#include "layers/layout/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tsprun::detail::launcher {

namespace {

constexpr std::size_t kMostPoints = 10'000;

std::vector<std::string> split(const std::string& option, const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    std::string part = text.substr(begin, end - begin);
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    if (part.empty())
      refuse(fmt::format("{} {}: part {} is empty; write values between '{}'", option, text, parts.size() + 1, separator));
    parts.push_back(std::move(part));
    begin = end + 1;
  }
  return parts;
}

/// Returns the values of a sweep, or the one value of its plain option.
std::vector<std::string> swept(const std::string& option, const std::string& sweep, const std::string& plain_option,
                               const std::string& plain) {
  if (sweep.empty()) return {plain};
  if (!plain.empty()) refuse(fmt::format("{} {} and {} {}: give one of them", option, sweep, plain_option, plain));
  return split(option, sweep, ',');
}

void check_whole(const std::string& option, const std::vector<std::string>& texts) {
  for (const std::string& each : texts)
    if (!each.empty()) parse_integer(option, each, 1, std::numeric_limits<std::int64_t>::max());
}

/// Checks that at least one layout has the axes whose variants were chosen.
void check_variants(GlobalOptions global, const std::vector<std::string>& layouts) {
  for (const AxisRow& row : kAxes) {
    const auto has_axis = [&](const std::string& layout) { return Layout::parse(layout).has(row.kind); };
    const auto found = std::ranges::find_if(layouts, has_axis);
    global.layout = Layout::parse(found == layouts.end() ? layouts.front() : *found);
    chosen_variant(global, row);
  }
}

/// Returns a text as a number; `usual` for an empty one. `text` must be a whole number or empty.
std::size_t number_or(const std::string& text, std::size_t usual) {
  return text.empty() ? usual : static_cast<std::size_t>(std::stoull(text));
}

}  // namespace

void take(const SweepPoint& at, GlobalOptions& global) {
  global.layout = Layout::parse(at.layout);
  global.layout.text = at.layout;
  global.ranks.text.clear();
  for (const AxisRow& row : kAxes) {
    if (!global.layout->has(row.kind)) global.variant(row.kind) = Given<std::size_t>();
  }
}

void take(const SweepPoint& at, ModelCommandOptions& model) {
  model.config = at.config;
  model.batch.text = at.batch;
  model.sequence.text = at.sequence;
}

void show_as_asked(const SweepPoint& at, ModelCommandOptions& model) {
  model.sequence = number_or(at.sequence, model.sequence);
  model.batch = number_or(at.batch, model.batch);
}

void SweepOptions::declare_sweep(OptionTable& table, Trait of_layouts) {
  table.add("--layouts SPEC[;SPEC...]", layouts, "layouts between semicolons: \"tsp=4;tp=4;tp=2,sp=2\"", of_layouts);
  table.add("--seqs S[,S...]", sequences, "sequence lengths, instead of --seq");
  table.add("--batches B[,B...]", batches, "batches, instead of --batch");
  table.add("--configs NAME[,NAME...]", configs, "models, instead of --config");
}

std::vector<std::string> split_layouts(const std::string& text) { return split("--layouts", text, ';'); }

std::vector<SweepPoint> sweep_points(const SweepOptions& options, const ModelCommandOptions& model, const GlobalOptions& global) {
  const std::vector<std::string> layouts =
      options.layouts.empty() ? std::vector<std::string>{""} : split_layouts(options.layouts);
  const std::vector<std::string> configs = swept("--configs", options.configs, "--config", model.config);
  const std::vector<std::string> sequences = swept("--seqs", options.sequences, "--seq", model.sequence.text);
  const std::vector<std::string> batches = swept("--batches", options.batches, "--batch", model.batch.text);
  if (!options.layouts.empty()) check_variants(global, layouts);
  for (const std::string& each : configs)
    if (!each.empty()) find_config(each);
  check_whole("--seq", sequences);
  check_whole("--batch", batches);
  if (layouts.size() * configs.size() * sequences.size() * batches.size() > kMostPoints)
    refuse(fmt::format("--layouts {}: with all sweeps more than {} jobs; give fewer", options.layouts, kMostPoints));
  std::vector<SweepPoint> points;
  for (const std::string& config : configs) {
    for (const std::string& batch : batches) {
      for (const std::string& sequence : sequences) {
        for (const std::string& layout : layouts) points.push_back({layout, config, sequence, batch});
      }
    }
  }
  return points;
}

}  // namespace tsprun::detail::launcher
