// Finds the order by looking for each part of a rank without a pipeline at the stages that have it.
#include "layers/schedules/stage_sums.h"

#include "layers/parameters/parameters.h"
#include "layers/parameters/place.h"

#include <fmt/format.h>

#include <numeric>
#include <stdexcept>

namespace tsprun::detail {

namespace {

/// Returns the parts with elements that a rank counts, in their order.
std::vector<PartPlan> counted_parts(const ModelConfig& config, const Layout& layout, int rank) {
  std::vector<PartPlan> parts;
  for (const PackPlan& pack : Placement(config, layout, rank).packs(model_parameters(config))) {
    for (const PartPlan& part : pack.parts) {
      if (part.counted && part.rows() * part.width() > 0) parts.push_back(part);
    }
  }
  return parts;
}

bool is_same(const PartPlan& one, const PartPlan& other) {
  return one.parameter.name == other.parameter.name && one.block.first_row == other.block.first_row &&
         one.block.first_column == other.block.first_column;
}

/// Returns the rank of `to` that has the same place on each of its axes as a rank of `from`.
int same_place(const Layout& to, const Layout& from, int rank) {
  int there = 0;
  for (const Axis& axis : to.axes) there += from.place(axis.kind, rank) * to.stride(axis.kind);
  return there;
}

}  // namespace

StageSums::StageSums(Rank& rank, Communicator& stages, const ModelConfig& config, const Layout& layout)
    : rank_(rank), stages_(stages) {
  const AxisKind axis = layout.stage_axis();
  const int me = rank.rank();
  std::vector<std::vector<PartPlan>> of_stages;
  std::vector<std::size_t> next = {0};  // number of the next part of each stage among all
  for (int stage = 0; stage < stages.size(); ++stage) {
    of_stages.push_back(counted_parts(config, layout, me + (stage - layout.place(axis, me)) * layout.stride(axis)));
    counts_.push_back(of_stages.back().size());
    next.push_back(next.back() + counts_.back());
  }
  const std::vector<std::size_t> first = next;
  const Layout whole = layout.without(Cut::layers);
  for (const PartPlan& part : counted_parts(config, whole, same_place(whole, layout, me))) {
    for (std::size_t stage = 0; stage < of_stages.size(); ++stage) {
      const std::size_t at = next[stage] - first[stage];
      if (at == of_stages[stage].size() || !is_same(of_stages[stage][at], part)) continue;
      order_.push_back(next[stage]++);
      break;
    }
  }
}

double StageSums::sum(std::span<const double> mine) {
  const auto me = static_cast<std::size_t>(stages_.rank());
  std::vector<double> all(std::accumulate(counts_.begin(), counts_.end(), std::size_t{0}));
  if (mine.size() != counts_[me] || order_.size() != all.size()) {
    throw std::invalid_argument(fmt::format("{} sums for the {} parts of stage {}; {} of {} parts have their place", mine.size(),
                                            counts_[me], me, order_.size(), all.size()));
  }
  if (all.empty()) return 0;
  rank_.wait(stages_.post_all_gather_v(ConstBuffer(mine), Buffer(std::span(all)), counts_, {.stream = Stream::gradients}));
  if (me > 0) return 0;
  double sum = 0;
  for (const std::size_t part : order_) sum += all[part];
  return sum;
}

}  // namespace tsprun::detail
