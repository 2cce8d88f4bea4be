// The rows of the registry, and the conditions of algorithms that don't run on every group.
#include "core/collectives/registry.h"

#include <algorithm>
#include <cstddef>

namespace tsprun::detail {

namespace {

std::string_view without_grid(const GroupShape& group) { return group.grid ? std::string_view() : group.no_grid; }

/// Returns what a message brings, or a root to each other rank.
std::uint64_t whole_buffer(const Group& group, const Arguments& call) { return call.root == group.rank ? 0 : call.recv.bytes(); }
/// Returns what others' chunks of a buffer bring that has a chunk from each rank.
std::uint64_t others_chunks(const Group& group, const Arguments& call) {
  return (call.chunks.total() - call.chunks.count(group.rank)) * size_of(call.recv.dtype);
}
std::uint64_t others_chunks_to_root(const Group& group, const Arguments& call) {
  return call.root == group.rank ? others_chunks(group, call) : 0;
}

using enum Algorithm;

constexpr AlgorithmRow kAlgorithmRows[] = {
    {.op = Op::send, .algorithm = direct, .start = send_message},
    {.op = Op::recv, .algorithm = direct, .start = receive_message, .received = whole_buffer},
    {.op = Op::send_recv, .algorithm = direct, .start = send_and_receive, .received = whole_buffer},

    {.op = Op::broadcast, .algorithm = direct, .start = direct_broadcast, .has_root = true, .received = whole_buffer},
    {.op = Op::broadcast,
     .algorithm = ring,
     .start = ring_broadcast,
     .relayed = true,
     .has_root = true,
     .received = whole_buffer},
    {.op = Op::broadcast,
     .algorithm = hierarchical,
     .start = hierarchical_broadcast,
     .relayed = true,
     .has_root = true,
     .why_not = without_grid,
     .received = whole_buffer},

    {.op = Op::all_gather, .algorithm = direct, .start = direct_all_gather, .received = others_chunks},
    {.op = Op::all_gather, .algorithm = ring, .start = ring_all_gather, .relayed = true, .received = others_chunks},
    {.op = Op::all_gather,
     .algorithm = hierarchical,
     .start = hierarchical_all_gather,
     .relayed = true,
     .why_not = without_grid,
     .received = others_chunks},

    {.op = Op::reduce_scatter,
     .algorithm = direct,
     .start = direct_reduce_scatter,
     .summed_by_owner = true,
     .received = direct_reduce_scatter_received},
    {.op = Op::reduce_scatter,
     .algorithm = ring,
     .start = ring_reduce_scatter,
     .relayed = true,
     .received = ring_reduce_scatter_received},
    {.op = Op::reduce_scatter,
     .algorithm = hierarchical,
     .start = hierarchical_reduce_scatter,
     .relayed = true,
     .reorders_sums = true,
     .why_not = without_grid,
     .received = hierarchical_reduce_scatter_received},

    {.op = Op::all_reduce,
     .algorithm = one_shot,
     .start = one_shot_all_reduce,
     .relayed = true,
     .received = one_shot_all_reduce_received},
    {.op = Op::all_reduce,
     .algorithm = rooted,
     .start = rooted_all_reduce,
     .relayed = true,
     .has_root = true,
     .received = rooted_all_reduce_received},
    {.op = Op::all_reduce,
     .algorithm = direct,
     .start = direct_all_reduce,
     .relayed = true,
     .summed_by_owner = true,
     .received = direct_all_reduce_received},
    {.op = Op::all_reduce, .algorithm = ring, .start = ring_all_reduce, .relayed = true, .received = ring_all_reduce_received},
    {.op = Op::all_reduce,
     .algorithm = hierarchical,
     .start = hierarchical_all_reduce,
     .relayed = true,
     .reorders_sums = true,
     .why_not = without_grid,
     .received = hierarchical_all_reduce_received},

    {.op = Op::reduce,
     .algorithm = direct,
     .start = direct_reduce,
     .relayed = true,
     .summed_by_owner = true,
     .has_root = true,
     .received = direct_reduce_received},
    {.op = Op::reduce,
     .algorithm = ring,
     .start = ring_reduce,
     .relayed = true,
     .has_root = true,
     .received = ring_reduce_received},

    {.op = Op::all_to_all, .algorithm = direct, .start = direct_all_to_all, .received = others_chunks},

    {.op = Op::gather, .algorithm = direct, .start = direct_gather, .has_root = true, .received = others_chunks_to_root},
    {.op = Op::scatter, .algorithm = direct, .start = direct_scatter, .has_root = true, .received = whole_buffer},

    {.op = Op::barrier, .algorithm = rooted, .start = rooted_barrier, .relayed = true, .has_root = true},
    {.op = Op::barrier, .algorithm = direct, .start = direct_barrier},
    {.op = Op::barrier, .algorithm = hierarchical, .start = hierarchical_barrier, .relayed = true, .why_not = without_grid},
};

/// Points to the rows by operation and algorithm: a small all_reduce would feel a search.
struct ByName {
  constexpr ByName() {
    for (const AlgorithmRow& row : kAlgorithmRows)
      rows[static_cast<std::size_t>(row.op)][static_cast<std::size_t>(row.algorithm)] = &row;
  }
  static constexpr std::size_t kAlgorithms =
      1 + static_cast<std::size_t>(std::ranges::max_element(kAlgorithmRows, {}, &AlgorithmRow::algorithm)->algorithm);
  const AlgorithmRow* rows[kOps][kAlgorithms] = {};
};
constexpr ByName kByName;

}  // namespace

std::span<const AlgorithmRow> algorithm_rows() { return kAlgorithmRows; }

const AlgorithmRow* find_algorithm(Op op, Algorithm algorithm) {
  const auto index = static_cast<std::size_t>(algorithm);
  return index < ByName::kAlgorithms ? kByName.rows[static_cast<std::size_t>(op)][index] : nullptr;
}

const AlgorithmRow& row_of(Op op, Start* start) {
  return *std::ranges::find_if(kAlgorithmRows, [&](const AlgorithmRow& row) { return row.op == op && row.start == start; });
}

}  // namespace tsprun::detail
