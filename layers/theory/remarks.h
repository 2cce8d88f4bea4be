// What a reader of a forecast must know, in sentences: how sums go across nodes, where a ring leaves links unused, and that a
// step was found from few layers or ranks.
#pragma once

#include "layers/layout/layout.h"
#include "layers/layout/setting.h"
#include "layers/theory/machine.h"

#include <cstddef>
#include <span>
#include <string>

namespace tsprun::detail::theory {

/// Returns how sums are added across nodes: by rails, or in the canonical order of real ranks. Empty if every layout lies on one
/// node.
std::string sums_remark(std::span<const Layout> layouts, const Machine& machine, bool by_rails);
/// Returns which axes send round a ring that uses one of the links of a node's GPU while others lead to its members, too. Empty
/// if there are none. The layouts must be possible for the setting.
std::string ring_remark(const Setting& setting, std::span<const Layout> layouts, const Machine& machine);
/// Returns that steps of at most `played` of a model's layers were played, and how well what two more layers take is known;
/// `difference`: the part by which it differed. Empty if all layers were played.
std::string layers_remark(std::size_t played, std::size_t layers, double difference);
/// Returns that some ranks were played for all, though they differ; `difference`: the part of their kernels' time that others
/// spend between other messages. Empty if that is next to nothing.
std::string ranks_remark(int played, int ranks, double difference);

}  // namespace tsprun::detail::theory
