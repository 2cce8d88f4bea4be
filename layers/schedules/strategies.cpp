// Table of what each axis of a layout adds to the strategy that computes its blocks.
#include "layers/schedules/strategies.h"

#include "layers/layout/check_layout.h"
#include "layers/parameters/place.h"
#include "layers/schedules/dense.h"
#include "layers/schedules/tp/tensor_parallel.h"
#include "layers/schedules/tsp/tsp.h"
#include "layers/schedules/zero3/gathered_weights.h"

#include <array>
#include <utility>

namespace tsprun::detail {

namespace {

/// Arguments of a strategy's maker.
struct MakerArguments {
  Rank& rank;
  Mesh& mesh;
  const StrategyOptions& options;
  SlicePlace slice;  ///< this rank's on the axis that cuts heads
  const Layout& layout() const { return mesh.layout(); }
};

/// An axis's part of the strategy. The axis that cuts tokens makes what computes a slice of the blocks; the one that cuts heads,
/// what sums the slices of `inner`. One that cuts sequences or layers has none: its ranks compute blocks on their own.
struct AxisStrategy {
  AxisKind axis;
  std::unique_ptr<Strategy> (*make)(const MakerArguments& of, std::unique_ptr<Strategy> inner);
};

std::unique_ptr<Strategy> make_tp(const MakerArguments& of, std::unique_ptr<Strategy> inner) {
  const auto exchange = static_cast<TensorExchange>(of.layout().variant(of.layout().tensor_axis()));
  const Placement placement(of.options.config, of.layout(), of.mesh.world().rank());
  return std::make_unique<TensorParallel>(of.rank, of.mesh.group({of.layout().tensor_axis()}), exchange, of.options, placement,
                                          std::move(inner));
}
std::unique_ptr<Strategy> make_sp(const MakerArguments& of, std::unique_ptr<Strategy> /*inner*/) {
  const auto exchange = static_cast<SequenceExchange>(of.layout().variant(of.layout().token_axis()));
  Communicator& axis = of.mesh.group({of.layout().token_axis()});
  return std::make_unique<Dense>(of.rank, axis, of.options, of.slice, exchange,
                                 std::make_unique<CopiedWeights>(of.rank, PackRanks::of(of.mesh, PackKind::attention)));
}
std::unique_ptr<Strategy> make_tsp(const MakerArguments& of, std::unique_ptr<Strategy> /*inner*/) {
  return std::make_unique<Tsp>(of.rank, of.mesh.group({of.layout().token_axis()}), PackRanks::of(of.mesh, PackKind::attention),
                               of.options, of.slice);
}
std::unique_ptr<Strategy> make_zero3(const MakerArguments& of, std::unique_ptr<Strategy> /*inner*/) {
  Communicator& axis = of.mesh.group({of.layout().token_axis()});
  return std::make_unique<Dense>(of.rank, axis, of.options, of.slice, SequenceExchange::gather,
                                 std::make_unique<GatheredWeights>(of.rank, axis, of.options.config));
}

constexpr std::array kStrategies = {AxisStrategy{AxisKind::dp, nullptr},      AxisStrategy{AxisKind::shard, nullptr},
                                    AxisStrategy{AxisKind::pp, nullptr},      AxisStrategy{AxisKind::tp, make_tp},
                                    AxisStrategy{AxisKind::sp, make_sp},      AxisStrategy{AxisKind::tsp, make_tsp},
                                    AxisStrategy{AxisKind::zero3, make_zero3}};
static_assert(is_by_axis(kStrategies, &AxisStrategy::axis), "each axis has a row, in the order of AxisKind");

}  // namespace

std::unique_ptr<Strategy> make_strategy(Rank& rank, Mesh& mesh, const StrategyOptions& options) {
  const Layout& layout = mesh.layout();
  check_layout(options.config, layout);
  const MakerArguments of{rank, mesh, options, {mesh.place(layout.tensor_axis()), layout.tensor()}};
  std::unique_ptr<Strategy> inner = kStrategies[index_of(layout.token_axis())].make(of, nullptr);
  if (layout.tensor() == 1) return inner;
  return kStrategies[index_of(layout.tensor_axis())].make(of, std::move(inner));
}

}  // namespace tsprun::detail
