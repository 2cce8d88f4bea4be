// The rows of the axes.
#include "layers/theory/ways.h"

#include <algorithm>
#include <array>

namespace tsprun::detail::theory {

namespace {

constexpr std::array kGathered = {add_gathered_kv};
constexpr std::array kBySequenceExchange = {add_gathered_kv, add_ring_kv, add_exchanged_heads};

constexpr std::array kWays = {
    AxisWay{.axis = AxisKind::dp, .paper_alone = paper::Scheme::dp},
    AxisWay{.axis = AxisKind::shard},
    AxisWay{.axis = AxisKind::pp},
    AxisWay{.axis = AxisKind::tp, .add_flows = add_tp, .paper_alone = paper::Scheme::tp},
    AxisWay{.axis = AxisKind::sp,
            .add_flows = add_sp,
            .add_kv = kBySequenceExchange,
            .paper_alone = paper::Scheme::sp,
            .paper_with_tensor = paper::Scheme::tp_sp},
    AxisWay{.axis = AxisKind::tsp,
            .shares_weights = true,
            .add_flows = add_tsp,
            .add_kv = kGathered,
            .paper_alone = paper::Scheme::tsp},
    AxisWay{.axis = AxisKind::zero3, .shares_weights = true, .add_flows = add_zero3, .add_kv = kGathered}};
static_assert(is_by_axis(kWays, &AxisWay::axis), "each axis has a row, in the order of AxisKind");
static_assert(std::ranges::all_of(kWays,
                                  [](const AxisWay& way) {
                                    const AxisRow& row = row_of(way.axis);
                                    return !cuts_tokens(row.cuts) ||
                                           way.add_kv.size() == std::max<std::size_t>(row.variants.size(), 1);
                                  }),
              "an axis that cuts tokens has a function for each variant");

const AxisWay& way_of(AxisKind axis) { return kWays[index_of(axis)]; }

}  // namespace

BlockFlows::BlockFlows(const Setting& micro_batch, const Layout& of)
    : setting(micro_batch),
      layout(of),
      model(micro_batch.model),
      T(static_cast<std::uint64_t>(of.tensor())),
      D(static_cast<std::uint64_t>(of.sequence())),
      L(model.layers),
      e(micro_batch.bytes.element),
      a(micro_batch.bytes.accumulated) {}

std::uint64_t BlockFlows::kv_read(const LayerSpec& layer) const {
  return HeadCut(model.query_heads, model.kv_heads_of(layer), layout.tensor()).kv_heads_read_by_all();
}

std::uint64_t BlockFlows::copied(const LayerSpec& layer) const {
  return layer.kv_matrices() * model.hidden * model.head_dim_of(layer) * (kv_read(layer) - model.kv_heads_of(layer));
}

const AxisWay& tokens_way(const Layout& layout) { return way_of(layout.token_axis()); }

std::optional<paper::Scheme> paper_scheme(const Layout& layout) {
  if (layout.slices_tokens() || layout.stages() > 1 || layout.shares_weights()) return std::nullopt;
  if (layout.data() > 1) return layout.replica() == 1 ? way_of(layout.data_axis()).paper_alone : std::nullopt;
  if (layout.tensor() == 1) return tokens_way(layout).paper_alone;
  return layout.sequence() == 1 ? way_of(layout.tensor_axis()).paper_alone : tokens_way(layout).paper_with_tensor;
}

void add_block_flows(BlockFlows& of) {
  if (of.D > 1) {
    const AxisWay& way = tokens_way(of.layout);
    way.add_flows(of);
    way.add_kv[of.layout.variant(way.axis)](of);
  }
  if (of.T > 1) way_of(of.layout.tensor_axis()).add_flows(of);
}

}  // namespace tsprun::detail::theory
