// Counts a group's members by node, then prices the bytes by operation.
#include "layers/theory/call_price.h"

#include "core/collectives/registry.h"
#include "core/kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace tsprun::detail::theory {

namespace {

/// Placement of a group's members on nodes.
struct Members {
  double all = 0;     ///< k, the members
  double node = 0;    ///< m, how many of them are on one node; where nodes differ, the most
  double nodes = 0;   ///< n, the nodes
  bool even = false;  ///< all nodes hold as many
};

Members members_of(const std::vector<int>& members, const Machine& machine) {
  std::map<int, int> by_node;
  for (const int rank : members) ++by_node[rank / machine.gpus_per_node];
  const auto of = [](const auto& node) { return node.second; };
  const auto [least, most] = std::ranges::minmax_element(by_node, {}, of);
  return {.all = static_cast<double>(members.size()),
          .node = static_cast<double>(most->second),
          .nodes = static_cast<double>(by_node.size()),
          .even = least->second == most->second};
}

/// Prices of bytes on a machine's links, for a group.
class GroupLinks {
 public:
  GroupLinks(const Machine& machine, const Members& group) : machine_(machine), group_(group) {}

  /// Bytes that come from all other members of the node side by side.
  double from_all(double bytes) const { return bytes / (machine_.within_bytes_per_s * fan()); }
  /// Bytes that come from one member of the node.
  double from_one(double bytes) const { return bytes / machine_.within_bytes_per_s; }
  /// Bytes that one member sends to each other of its node.
  double to_each(double bytes) const { return from_all(bytes * (group_.node - 1)); }
  double across(double bytes) const { return bytes / machine_.across_bytes_per_s(); }
  /// Bytes that pass a node's end, from its last member to the first of the next node.
  double past_the_end(double bytes) const { return across(bytes * (group_.node > 1 ? machine_.rail_crossing : 1)); }

 private:
  /// How many links a rank has to other members of its node.
  double fan() const { return machine_.fabric == Fabric::links ? std::max(1.0, group_.node - 1) : 1; }

  const Machine& machine_;
  const Members& group_;
};

/// Returns how many times larger partial sums are that go along a ring than what is added.
double widening(const ProgramCall& call) {
  const DType dtype = call.arguments.send.dtype;
  return static_cast<double>(size_of(kernels::accumulator_of(dtype))) / static_cast<double>(size_of(dtype));
}

/// Returns whether an all_reduce adds the sums of n nodes, with so many members each, by a tree along each rail.
bool adds_rails_by_tree(const ProgramCall& call, double node, double nodes) {
  const auto of_rail = static_cast<std::uint64_t>(static_cast<double>(call.arguments.send.bytes()) / node);
  return call.algorithm == hierarchical_all_reduce && is_tree_faster(of_rail, static_cast<int>(nodes));
}

}  // namespace

CallPrice call_price(const ProgramCall& call, const std::vector<int>& members, const Machine& machine) {
  const Members group = members_of(members, machine);
  const auto& [k, m, n, even] = group;
  if (k <= 1) return {};
  const GroupLinks links(machine, group);
  const double bytes = static_cast<double>(call.received_by_all) / k;
  const double latency = n > 1 ? machine.nic_latency : machine.within_latency;
  switch (call.op) {
    case Op::send:
    case Op::recv:
    case Op::send_recv: {
      if (n > 1) return {.across = links.past_the_end(bytes), .delay = latency};
      return {.within = links.from_one(bytes), .delay = latency};
    }
    case Op::all_to_all: {
      const double leaving = bytes * (k - m) / (k - 1);
      return {.within = links.from_all(bytes - leaving),
              .across = n > 1 ? links.across(leaving * (1 / m + (m - 1) / m * machine.rail_crossing)) : 0,
              .delay = latency};
    }
    case Op::broadcast:
    case Op::reduce:
    case Op::gather:
    case Op::scatter: {
      const double buffer = bytes * k / (k - 1);
      if (n == 1) return {.within = links.to_each(buffer), .delay = latency};
      if (call.op == Op::broadcast && even && m > 1) {
        const double hop = links.across(buffer / m);
        return {.within = links.to_each(buffer),
                .across = hop,
                .after = links.from_all(buffer * (m - 1) / m),
                .delay = (n - 2) * hop + (n - 1) * latency,
                .ordered = true};
      }
      const double widened = call.op == Op::reduce ? widening(call) : 1;
      return {.across = links.past_the_end(buffer * widened), .delay = (n - 1) * latency};
    }
    default: break;
  }
  const bool reduces_all = call.op == Op::all_reduce;
  const bool adds = reduces_all || call.op == Op::reduce_scatter;
  const double turns = reduces_all ? 2 : 1;  // round the ring: an all_reduce also spreads what it has summed
  const double steps = turns * std::max(1.0, n - 1);
  if (n == 1) return {.within = links.from_all(bytes), .delay = steps * latency};
  const double leaving = even ? bytes * (n - 1) / (k - 1) : bytes;
  // A tree of all members has as many steps as their number has bits, in most of which all bytes leave the node.
  if (call.algorithm == tree_all_reduce)
    return {.across = links.past_the_end(bytes / 2 * (widening(call) + 1)) + 2 * std::ceil(std::log2(k)) * latency};
  // Each hop of each piece of a sum waits for the one before it.
  const double summed = adds ? leaving / turns * widening(call) : 0;
  const double waits = reduces_all && adds_rails_by_tree(call, m, n) ? turns * std::ceil(std::log2(n)) * latency
                       : adds                                        ? std::max(steps, turns * summed / kRingPieceBytes) * latency
                                                                     : 0;
  const double moved = adds ? summed + leaving * (turns - 1) / turns : leaving;
  const double delay = adds ? 0 : steps * latency;
  if (!even) return {.across = links.past_the_end(moved) + waits, .delay = delay};
  const double within = links.from_all(bytes - leaving);
  const double later = reduces_all ? within / 2 : adds ? 0 : within / n;
  return {.within = within - later, .across = links.across(moved) + waits, .after = later, .delay = delay, .ordered = adds};
}

}  // namespace tsprun::detail::theory
