// The operations that a communicator offers, and the reductions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tsprun {

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
/// True for what all ranks of a group do together; false for messages between two.
constexpr bool is_collective(Op op) { return op != Op::send && op != Op::recv && op != Op::send_recv; }
std::string_view name(Op op);
std::optional<Op> op_from_name(std::string_view text);

/// min and max propagate NaN.
enum class Reduction : std::uint8_t { sum, max, min };
std::string_view name(Reduction reduction);
std::optional<Reduction> reduction_from_name(std::string_view text);

}  // namespace tsprun
