// Enumerates layouts, judges each by a phantom's run, which tells its memory and records its program, and by the time that the
// program takes (lone_walk.h), and sorts them.
#include "layers/theory/search.h"

#include "layers/layout/check_layout.h"
#include "layers/layout/document_lengths.h"
#include "layers/theory/flops.h"
#include "layers/theory/lone_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace tsprun::detail::theory {

namespace {

constexpr double kGiB = 1 << 30;

/// Adds the layout in every variant of its axes.
void add_variants(std::vector<Layout>& found, const Layout& plain) {
  std::vector<Layout> all = {plain};
  for (const AxisRow& row : kAxes) {
    if (!plain.has(row.kind) || row.variants.empty()) continue;
    std::vector<Layout> chosen;
    for (const Layout& each : all) {
      for (std::size_t variant = 0; variant < row.variants.size(); ++variant) chosen.push_back(each.with(row.kind, variant));
    }
    all = std::move(chosen);
  }
  std::erase_if(all, [](const Layout& each) { return !each.why_not().empty(); });
  found.insert(found.end(), all.begin(), all.end());
}

/// Adds the layouts that begin with these axes and end with others, whose degrees have the product `ranks`: as the table of axes
/// and the grammar allow, in every variant.
void add_layouts(std::vector<Layout>& found, const Layout& begun, int ranks) {
  if (ranks == 1) {
    add_variants(found, begun);
    return;
  }
  for (const AxisRow& row : kAxes) {
    if (!row.why_only_trained.empty() || !row.searched) continue;
    for (int degree = 2; degree <= ranks; ++degree) {
      Layout longer = begun;
      longer.axes.push_back({row.kind, degree});
      if (ranks % degree == 0 && longer.why_not().empty()) add_layouts(found, longer, ranks / degree);
    }
  }
}

std::string gibibytes(double bytes) { return fmt::format("{:.1f} GiB", bytes / kGiB); }

/// Returns the two memory categories that take most, as text.
std::string largest_parts(const CategoryBytes& bytes) {
  std::vector<std::pair<std::uint64_t, std::string_view>> parts;
  for (std::size_t i = 0; i < kCategories; ++i) parts.emplace_back(bytes.of[i], tsprun::name(static_cast<Category>(i)));
  std::sort(parts.begin(), parts.end(), std::greater<>());
  return fmt::format("{} {}, {} {}", parts[0].second, gibibytes(static_cast<double>(parts[0].first)), parts[1].second,
                     gibibytes(static_cast<double>(parts[1].first)));
}

}  // namespace

std::vector<Layout> all_layouts(int ranks) {
  std::vector<Layout> layouts;
  add_layouts(layouts, {}, ranks);
  std::ranges::stable_sort(layouts, {}, [](const Layout& each) {
    // Where weights aren't cut at all, they take most memory: such layouts come last.
    return std::tuple(each.data(), each.tensor(), each.tensor() == 1 && row_of(each.token_axis()).cuts == Cut::tokens);
  });
  return layouts;
}

double model_flops(const Setting& setting) {
  // A backward pass has twice the products, and of attention two and a half times. What it computes again doesn't count.
  const PassFlops once = forward_flops(setting, {}, {});
  return 3 * (once.attention_linear + once.mlp + once.head) + 3.5 * once.attention_core;
}

namespace {

/// Returns the rank whose program a step's time is taken from: the fullest one or, where documents give the ranks that cut its
/// tokens unlike shares of attention, the one of them that has most.
int paced_by(const MeshSetting& of, int fullest_rank) {
  if (of.setting.documents.empty() || of.layout.exchanges_heads()) return fullest_rank;
  const std::vector<double> pairs = attention_pairs(of.setting, of.layout);
  const auto busiest = std::ranges::max_element(pairs);
  MeshPlace place = place_of(of.layout, fullest_rank);
  if (*busiest > pairs[static_cast<std::size_t>(place.sequence)]) place.sequence = static_cast<int>(busiest - pairs.begin());
  return rank_at(of.layout, place);
}

Candidate judge_mode(const Setting& setting, const Layout& layout, const Machine& machine, const SearchOptions& options) {
  Candidate candidate;
  candidate.layout = layout;
  candidate.recompute = setting.recompute;
  candidate.possible = true;
  PeakOptions how;
  how.like.algorithms = options.algorithms;
  how.pieces = machine.pieces;
  try {
    const MeshSetting mesh{setting, layout};
    const int rank = fullest(mesh);
    const RecordedStep recorded = record_step(mesh, rank, how, 2, true);
    candidate.memory = recorded.peaks;
    candidate.saving = recorded.saving;
    candidate.amounts = amounts_of(recorded.program);
    const auto time_of = [&](const RecordedStep& step) { return walk(step.program, machine, PriceFacts::of(setting, true)); };
    const int paces = paced_by(mesh, rank);
    candidate.time = paces == rank ? time_of(recorded) : time_of(record_step(mesh, paces, how, 2, true));
  } catch (const Error& error) {
    if (error.cause() != Cause::out_of_memory) throw;
    candidate.possible = false;
    candidate.why = error.what();
    return candidate;
  }
  candidate.tokens_per_s = static_cast<double>(setting.tokens()) / candidate.time.seconds;
  candidate.utilization =
      model_flops(setting) / (layout.ranks() * machine.flops(options.dtype).value_or(0) * candidate.time.seconds);
  candidate.fits = candidate.saving <= options.memory_bytes;
  if (candidate.fits) {
    candidate.why = fmt::format("bound by {}", name(candidate.time.binds, machine));
  } else {
    const auto total = static_cast<double>(candidate.saving);
    const auto size = static_cast<double>(options.memory_bytes);
    candidate.why = fmt::format("{} too much: {}", gibibytes(total - size), largest_parts(candidate.memory));
  }
  return candidate;
}

/// Returns whether two layouts have the same axes in another order and no figure differs.
bool are_alike(const Candidate& a, const Candidate& b) {
  if (a.possible != b.possible || a.recompute != b.recompute || a.why != b.why || a.memory != b.memory) return false;
  if (a.time.seconds != b.time.seconds || a.time.exposed != b.time.exposed) return false;
  return a.layout.axes.size() == b.layout.axes.size() &&
         std::is_permutation(a.layout.axes.begin(), a.layout.axes.end(), b.layout.axes.begin());
}

/// Returns the largest of value/2, value/4, … for which `fits` returns true, or 0 if there is none.
template <class Fits>
std::size_t largest_half(std::size_t value, Fits&& fits) {
  while (value > 1) {
    value /= 2;
    if (fits(value)) return value;
  }
  return 0;
}

}  // namespace

Candidate judge(const Setting& setting, const Layout& layout, const Machine& machine, const SearchOptions& options) {
  Candidate candidate;
  candidate.layout = layout;
  candidate.recompute = setting.recompute;
  candidate.why = why_impossible(setting, layout);
  if (!candidate.why.empty()) return candidate;
  // Modes are tried fastest first, by formulas that cost nothing (step_time.h), and the first that fits is taken: the others need
  // no run of the schedule.
  std::vector<Setting> modes;
  for (const Recompute mode : options.modes) {
    modes.push_back(setting);
    modes.back().recompute = mode;
  }
  if (modes.empty()) modes.push_back(setting);
  std::stable_sort(modes.begin(), modes.end(), [&](const Setting& a, const Setting& b) {
    return step_time(a, layout, machine, options.dtype).seconds < step_time(b, layout, machine, options.dtype).seconds;
  });
  // Nor does one that certainly doesn't fit, but for the one that needs least, whose needs are told.
  const auto least = [&](const Setting& mode) {
    const MeshSetting mesh{mode, layout};
    return certain(mesh, place_of(layout, fullest(mesh)), 0).total;
  };
  const std::uint64_t fewest = least(*std::ranges::min_element(modes, {}, least));
  std::erase_if(modes, [&](const Setting& mode) { return least(mode) > std::max(fewest, options.memory_bytes); });
  for (const Setting& mode : modes) {
    Candidate judged = judge_mode(mode, layout, machine, options);
    if (judged.fits) return judged;
    if (!candidate.possible || (judged.possible && judged.memory.total < candidate.memory.total)) candidate = std::move(judged);
  }
  return candidate;
}

std::vector<Candidate> search(const Setting& setting, int gpus, const Machine& machine, const SearchOptions& options) {
  std::vector<Candidate> candidates;
  std::vector<Layout> layouts = all_layouts(gpus);
  std::stable_partition(layouts.begin(), layouts.end(), [](const Layout& layout) { return !layout.shares_states(); });
  // Replicas that share optimizer states, or weights too, need less memory. Where the same layout fits with less sharing, in its
  // fastest mode, they matter if they are faster; where it doesn't, if they may fit, or nothing else does.
  const auto matters = [&](const Layout& layout) {
    auto sibling = candidates.end();
    for (std::size_t sharing = layout.variant(layout.data_axis()); sharing-- > 0 && sibling == candidates.end();) {
      const Layout less = layout.with(layout.data_axis(), sharing);
      sibling = std::ranges::find_if(candidates, [&](const Candidate& each) {
        return each.layout == less || std::ranges::find(each.alike, less) != each.alike.end();
      });
    }
    if (sibling == candidates.end() || std::ranges::none_of(candidates, &Candidate::fits)) return true;
    const auto seconds = [&](Recompute mode, const Layout& of) {
      Setting so = setting;
      so.recompute = mode;
      return step_time(so, of, machine, options.dtype).seconds;
    };
    if (sibling->fits) {
      std::vector<Recompute> modes = options.modes;
      modes.push_back(sibling->recompute);
      const double without = seconds(sibling->recompute, sibling->layout);
      return std::ranges::any_of(modes, [&](Recompute mode) { return seconds(mode, layout) < without; });
    }
    MeshSetting least{setting, layout};
    least.setting.recompute = Recompute::full;
    return certain(least, place_of(layout, fullest(least)), 0).total <= options.memory_bytes;
  };
  std::size_t done = 0;
  for (const Layout& layout : layouts) {
    if (options.progress) options.progress(++done, layouts.size());
    if (layout.shares_states() && why_impossible(setting, layout).empty() && !matters(layout)) continue;
    Candidate judged = judge(setting, layout, machine, options);
    const auto twin =
        std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& each) { return are_alike(each, judged); });
    if (twin == candidates.end()) candidates.push_back(std::move(judged));
    else twin->alike.push_back(layout);
  }
  const auto key = [](const Candidate& each) {
    const double order = each.fits ? each.time.seconds : static_cast<double>(each.memory.total);
    return std::tuple(each.fits ? 0 : each.possible ? 1 : 2, order, each.layout.axes.size());
  };
  std::stable_sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) { return key(a) < key(b); });
  return candidates;
}

std::optional<Remedies> remedies(const Setting& setting, const std::vector<Candidate>& found, const Machine& machine,
                                 const SearchOptions& options) {
  if (found.empty() || found.front().fits || !found.front().possible) return std::nullopt;
  Remedies result;
  result.least = found.front();
  result.memory_bytes = result.least.saving;
  const Layout& layout = result.least.layout;
  for (int times = 2; times <= kMostTimes && !result.more_gpus && !layout.axes.empty(); times *= 2) {
    for (std::size_t axis = layout.axes.size(); axis-- > 0 && !result.more_gpus;) {
      Layout wider = layout;
      wider.axes[axis].degree *= times;
      Candidate judged = judge(setting, wider, machine, options);
      if (judged.fits) result.more_gpus = std::move(judged);
    }
  }
  const auto fits = [&](std::size_t batch, std::size_t sequence) {
    Setting smaller = setting;
    smaller.batch = batch;
    smaller.sequence = sequence;
    smaller.documents = documents_within(setting.documents, sequence);
    return judge(smaller, layout, machine, options).fits;
  };
  result.batch = largest_half(setting.batch, [&](std::size_t batch) { return fits(batch, setting.sequence); });
  result.sequence = largest_half(setting.sequence, [&](std::size_t sequence) { return fits(setting.batch, sequence); });
  return result;
}

}  // namespace tsprun::detail::theory
