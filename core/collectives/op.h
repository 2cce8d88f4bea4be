// The operations that a communicator offers, and the reductions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tsprun {

/// An operation of a communicator. The board, traces, reports and --fault spell it as name() does.
enum class Op : std::uint8_t {
  send,
  recv,
  send_recv,
  broadcast,
  all_gather,
  reduce_scatter,
  all_reduce,
  reduce,
  all_to_all,
  barrier
};
inline constexpr int kOps = 10;
/// Returns true for operations that all ranks of a group call together, false for messages between two ranks.
constexpr bool is_collective(Op op) { return op != Op::send && op != Op::recv && op != Op::send_recv; }
/// Returns the enumerator's name: "all_gather".
std::string_view name(Op op);
/// Returns the operation with this name; none if there is no such operation.
std::optional<Op> op_from_name(std::string_view text);

/// How a reduction combines two elements. min and max propagate NaN.
enum class Reduction : std::uint8_t { sum, max, min };
/// Returns the enumerator's name: "sum".
std::string_view name(Reduction reduction);
/// Returns the reduction with this name; none if there is no such reduction.
std::optional<Reduction> reduction_from_name(std::string_view text);

}  // namespace tsprun
