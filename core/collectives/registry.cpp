// The rows of the registry, and the conditions of algorithms that don't run on every group.
#include "core/collectives/registry.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

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

// What else is true of a row; see AlgorithmRow.
constexpr unsigned kRelayed = 1;
constexpr unsigned kReordersSums = 2;
constexpr unsigned kHasRoot = 4;

constexpr AlgorithmRow row(Op op, Algorithm algorithm, Start* start, Received* received, unsigned facts = 0) {
  return {.op = op,
          .algorithm = algorithm,
          .start = start,
          .relayed = algorithm == hierarchical || (facts & kRelayed) != 0,
          .reorders_sums = (facts & kReordersSums) != 0,
          .has_root = (facts & kHasRoot) != 0,
          .why_not = algorithm == hierarchical ? without_grid : nullptr,
          .received = received};
}

constexpr AlgorithmRow kAlgorithmRows[] = {
    row(Op::send, direct, send_message, nullptr),
    row(Op::recv, direct, receive_message, whole_buffer),
    row(Op::send_recv, direct, send_and_receive, whole_buffer),

    row(Op::broadcast, direct, direct_broadcast, whole_buffer, kHasRoot),
    row(Op::broadcast, ring, ring_broadcast, whole_buffer, kHasRoot | kRelayed),
    row(Op::broadcast, hierarchical, hierarchical_broadcast, whole_buffer, kHasRoot),

    row(Op::all_gather, direct, direct_all_gather, others_chunks),
    row(Op::all_gather, ring, ring_all_gather, others_chunks, kRelayed),
    row(Op::all_gather, hierarchical, hierarchical_all_gather, others_chunks),

    row(Op::reduce_scatter, direct, direct_reduce_scatter, direct_reduce_scatter_received),
    row(Op::reduce_scatter, ring, ring_reduce_scatter, ring_reduce_scatter_received, kRelayed),
    row(Op::reduce_scatter, hierarchical, hierarchical_reduce_scatter, hierarchical_reduce_scatter_received, kReordersSums),

    row(Op::all_reduce, one_shot, one_shot_all_reduce, one_shot_all_reduce_received, kRelayed),
    row(Op::all_reduce, rooted, rooted_all_reduce, rooted_all_reduce_received, kHasRoot | kRelayed),
    row(Op::all_reduce, direct, direct_all_reduce, direct_all_reduce_received, kRelayed),
    row(Op::all_reduce, ring, ring_all_reduce, ring_all_reduce_received, kRelayed),
    row(Op::all_reduce, hierarchical, hierarchical_all_reduce, hierarchical_all_reduce_received, kReordersSums),
    row(Op::all_reduce, tree, tree_all_reduce, tree_all_reduce_received, kReordersSums | kRelayed),

    row(Op::reduce, direct, direct_reduce, direct_reduce_received, kHasRoot | kRelayed),
    row(Op::reduce, ring, ring_reduce, ring_reduce_received, kHasRoot | kRelayed),

    row(Op::all_to_all, direct, direct_all_to_all, others_chunks),

    row(Op::gather, direct, direct_gather, others_chunks_to_root, kHasRoot),
    row(Op::scatter, direct, direct_scatter, whole_buffer, kHasRoot),

    row(Op::barrier, rooted, rooted_barrier, nullptr, kHasRoot | kRelayed),
    row(Op::barrier, direct, direct_barrier, nullptr),
    row(Op::barrier, hierarchical, hierarchical_barrier, nullptr),
};

static_assert(std::ranges::adjacent_find(kAlgorithmRows,
                                         [](const AlgorithmRow& one, const AlgorithmRow& next) {
                                           return one.op > next.op || (one.op == next.op && one.algorithm >= next.algorithm);
                                         }) == std::end(kAlgorithmRows),
              "rows stand in the order of Op, those of an operation in the order of Algorithm, each once");

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
