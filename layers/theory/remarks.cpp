// Asks layouts and their flows what their forecasts should say.
#include "layers/theory/remarks.h"

#include "layers/theory/flows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace tsprun::detail::theory {

std::string sums_remark(std::span<const Layout> layouts, const Machine& machine, bool by_rails) {
  if (std::ranges::none_of(layouts, [&](const Layout& layout) { return layout.ranks() > machine.gpus_per_node; })) return {};
  if (by_rails) {
    return "Sums across nodes go by rails, as NCCL and RCCL add, so that all NICs of a node carry them. Real ranks do so with "
           "--reassociate; without it they keep the canonical order, which has the same bits on any nodes.";
  }
  return "Sums keep the canonical order, as real ranks do without --reassociate: it has the same bits on any nodes, and goes "
         "round one ring of all ranks, which crosses from node to node by one NIC.";
}

std::string ring_remark(const Setting& setting, std::span<const Layout> layouts, const Machine& machine) {
  std::set<std::string> axes;
  for (const Layout& layout : layouts) {
    if (machine.fabric != Fabric::links || machine.cores) break;
    for (const Flow& flow : step_flows(setting, layout)) {
      // Between two ranks of a node there is one link anyway.
      const int of_a_node = std::min(machine.gpus_per_node / layout.stride(flow.axis), layout.degree(flow.axis));
      if (flow.pattern == Pattern::ring && of_a_node > 2)
        axes.insert(fmt::format("{}={}", row_of(flow.axis).name, layout.degree(flow.axis)));
    }
  }
  if (axes.empty()) return {};
  return fmt::format("What goes round the ring of {} uses one of the {} links that a GPU has within its node.",
                     fmt::join(axes, ", "), machine.gpus_per_node - 1);
}

namespace {

/// Differences that aren't worth a word.
constexpr double kEven = 2e-3;

}  // namespace

std::string layers_remark(std::size_t played, std::size_t layers, double difference) {
  if (played >= layers) return {};
  return fmt::format("steps of at most {} of the {} layers were played, and {}", played, layers,
                     difference <= kEven ? std::string("grow evenly")
                                         : fmt::format("what two more layers take differs by {:.1f} %", 100 * difference));
}

std::string ranks_remark(int played, int ranks, double difference) {
  if (difference <= kEven) return {};
  return fmt::format("{} ranks were played for all {}, though others do up to {:.1f} % of their work between other messages",
                     played, ranks, 100 * difference);
}

}  // namespace tsprun::detail::theory
