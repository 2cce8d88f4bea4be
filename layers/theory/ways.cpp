// The rows of the ways, by scheme and exchange.
#include "layers/theory/ways.h"

#include <array>

namespace tsprun::detail::theory {

namespace {

/// Rows in the order of Scheme.
constexpr std::array kWeights = {WeightsWay{.shared = true, .held = held_by_tsp, .add_flows = add_tsp},
                                 WeightsWay{.shared = false, .held = held_by_sp, .add_flows = add_sp},
                                 WeightsWay{.shared = true, .held = held_by_zero3, .add_flows = add_zero3}};
static_assert(kWeights.size() == kSchemes && static_cast<int>(Scheme::tsp) == 0 && static_cast<int>(Scheme::dense) == 1 &&
              static_cast<int>(Scheme::zero3) == 2);

/// Functions in the order of SequenceExchange, whose value is `gather` under the schemes that have no choice.
constexpr std::array kExchanges = {add_gathered_kv, add_ring_kv, add_exchanged_heads};
static_assert(kExchanges.size() == kSequenceExchanges.size());

}  // namespace

BlockFlows::BlockFlows(const Setting& replica, const Layout& of)
    : setting(replica),
      layout(of),
      model(replica.model),
      T(static_cast<std::uint64_t>(of.tensor())),
      D(static_cast<std::uint64_t>(of.sequence())),
      L(model.layers),
      e(replica.bytes.element),
      a(replica.bytes.accumulated),
      kv_read(HeadCut(model.query_heads, model.kv_heads, of.tensor()).kv_heads_read_by_all()),
      copied(2 * model.hidden * model.head_dim * (kv_read - model.kv_heads)) {}

const WeightsWay& weights_way(const Layout& layout) { return kWeights[static_cast<std::size_t>(layout.scheme())]; }

std::vector<Flow> block_flows(const Setting& replica, const Layout& layout) {
  BlockFlows of(replica, layout);
  if (of.D > 1) {
    weights_way(layout).add_flows(of);
    const bool chooses = layout.token_axis() == AxisKind::sp;
    kExchanges[static_cast<std::size_t>(chooses ? layout.sequence_exchange : SequenceExchange::gather)](of);
  }
  if (of.T > 1) add_tp(of);
  return std::move(of.flows);
}

BlockElements elements_of(const ModelConfig& model, const BlockSlice& slice) {
  return {.attention = 2 * (slice.queries.count + slice.kv.count) * model.head_dim * model.hidden,
          .mlp = model.mlp_matrices() * slice.rows * model.hidden};
}

}  // namespace tsprun::detail::theory
