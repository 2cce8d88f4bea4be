// Registry of algorithms: a row for each algorithm of each operation, with everything that other code needs to know of it. A new
// algorithm is a file in algorithms/, a declaration here and a row in registry.cpp.
#pragma once

#include "core/collectives/choice.h"
#include "core/collectives/collective.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tsprun::detail {

/// Returns the reason why an algorithm can't run on groups of this shape; empty if it can.
using Refusal = std::string_view(const GroupShape& group);
/// Returns the payload bytes that a call brings to this rank of the group.
using Received = std::uint64_t(const Group& group, const Arguments& call);

/// An algorithm of an operation.
struct AlgorithmRow {
  Op op;
  Algorithm algorithm;
  Start* start;
  bool relayed = false;          ///< a rank's data may reach another one through a third, or summed with others' data
  bool reorders_sums = false;    ///< adds in another order than the canonical one: runs only with --reassociate
  bool has_root = false;         ///< one rank does what no other does, so in virtual time no rank can stand for all
  Refusal* why_not = nullptr;    ///< null: runs on every group
  Received* received = nullptr;  ///< null: no payload
};

/// Returns all rows, those of an operation in the order of Algorithm.
std::span<const AlgorithmRow> algorithm_rows();
/// Returns the row of an algorithm of an operation; null if the operation has no such algorithm.
const AlgorithmRow* find_algorithm(Op op, Algorithm algorithm);
/// Returns the row of a coroutine, which must be in the registry.
const AlgorithmRow& row_of(Op op, Start* start);

Start direct_all_gather, direct_all_reduce, direct_all_to_all, direct_barrier, direct_broadcast, direct_gather, direct_reduce,
    direct_reduce_scatter, direct_scatter;
Start hierarchical_all_gather, hierarchical_all_reduce, hierarchical_barrier, hierarchical_broadcast, hierarchical_reduce_scatter;
Start one_shot_all_reduce, rooted_all_reduce, rooted_barrier;
Start ring_all_gather, ring_all_reduce, ring_broadcast, ring_reduce, ring_reduce_scatter;
Start tree_all_reduce;
Start send_message, receive_message, send_and_receive, send_tagged, receive_tagged;

Received direct_all_reduce_received, hierarchical_all_reduce_received, one_shot_all_reduce_received, ring_all_reduce_received,
    rooted_all_reduce_received, tree_all_reduce_received;
Received direct_reduce_received, direct_reduce_scatter_received, hierarchical_reduce_scatter_received, ring_reduce_received,
    ring_reduce_scatter_received;

}  // namespace tsprun::detail
