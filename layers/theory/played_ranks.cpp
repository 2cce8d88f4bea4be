// Finds units of ranks that do the same.
#include "layers/theory/played_ranks.h"

#include "core/virtual/folding.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

namespace tsprun::detail::theory {

namespace {

/// Part of the played ranks' longest time by which the kernels of another may take longer. All wait for one that takes longer,
/// and none for one that doesn't.
constexpr double kLonger = 5e-4;
/// Part of its kernels' time that a rank may spend between other messages than the one that is played for it. A step of sp=64
/// whose ranks differ by 1.5 % is played 0.4 % too short.
constexpr double kMostDifference = 2e-2;

/// Returns the fewest consecutive ranks that share no link with others: a node's, or a leaf's; nothing if all share some.
std::optional<int> ranks_with_own_links(const Layout& layout, const Machine& machine) {
  if (!machine.spine) return machine.gpus_per_node;
  const std::int64_t leaf = std::int64_t{machine.spine->nodes_per_leaf} * machine.gpus_per_node;
  if (layout.ranks() > leaf) return static_cast<int>(leaf);
  // All nodes on one leaf: nothing goes through the spine.
  return machine.spine->leaf_per_rail ? std::nullopt : std::optional(machine.gpus_per_node);
}

/// Returns how units of so many ranks lie on the layout's axes; nothing if they cut one unevenly.
std::optional<sim::UnitGrid> grid_of(const Layout& layout, int unit) {
  sim::UnitGrid grid{.unit = unit, .along = {}};
  int within = 1;
  for (auto axis = layout.axes.rbegin(); axis != layout.axes.rend(); ++axis) {
    const int inner = std::gcd(unit / within, axis->degree);  // places of the axis within a unit
    within *= inner;
    if (inner == axis->degree) continue;
    if (within < unit) return std::nullopt;
    grid.along.insert(grid.along.begin(), axis->degree / inner);
  }
  return within == unit ? std::optional(std::move(grid)) : std::nullopt;
}

}  // namespace

int unit_of(const Layout& layout, int gpus_per_node) {
  // Ranks of shard don't do the same as those of another group, shifted by less than one.
  const int replicas = layout.sharing_axis() == layout.data_axis() ? 1 : layout.sharers();
  const int unit = std::max(1, std::lcm(layout.replica() * replicas, gpus_per_node));
  return layout.ranks() % unit == 0 ? unit : layout.ranks();
}

int unit_of(const Layout& layout, const Machine& machine) {
  const std::optional<int> own = ranks_with_own_links(layout, machine);
  return own ? unit_of(layout, *own) : layout.ranks();
}

FewestRanks::FewestRanks(const Layout& layout, const Machine& machine, std::function<double(const KernelCost&)> price,
                         double times)
    : price_(std::move(price)), times_(times) {
  const std::optional<int> own = ranks_with_own_links(layout, machine);
  if (own && !machine.cores && *own < unit_of(layout, machine)) grid_ = grid_of(layout, *own);
}

void FewestRanks::add(const Program& program, double seconds) {
  if (!grid_) return;
  const int rank = ranks_++;
  if (rank < grid_->unit) {
    longest_ = std::max(longest_, seconds);
    first_.push_back(program);
    return;
  }
  const Program& first = first_[static_cast<std::size_t>(rank % grid_->unit)];
  const std::optional<double> apart = differs_by(first, program, rank / grid_->unit, *grid_, price_);
  const double difference = apart.value_or(0) == 0 ? 0 : times_ * *apart / seconds;
  if (apart && difference <= kMostDifference && seconds <= (1 + kLonger) * longest_) {
    difference_ = std::max(difference_, difference);
  } else {
    grid_.reset();
    first_ = {};
  }
}

}  // namespace tsprun::detail::theory
