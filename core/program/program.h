// A program: what one rank does in a pass, item by item, without its values. It says which kernels run on which sizes, which
// operations are posted and waited for, and which memory is taken and given back. A player (core/virtual/player.h) can then tell
// how long the pass would take on a machine that isn't there.
//
// An item has 16 bytes; what items say more than once is interned:
//
//   byte 0       1         2        4                  8                                                   16
//        | kind  | stream  |   -    | index            | amount                                            |
//
//   kind      stream   index                         amount
//   kernel    -        of the kernel's cost          0
//   post      its      of the call                   number of the operation on its stream, from 1
//   call      its      of the call                   the same; the rank waits for it at once
//   wait      its      0                             number of the operation; 0: it was posted before the program begins
//   take      -        category of the memory        bytes of the schedule's tensor
//   give      -        category of the memory        bytes
//   stage     part     0                             1: of the backward pass, else 0
#pragma once

#include "core/collectives/collective.h"
#include "tsprun/memory.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

namespace tsprun::detail {

/// Cost of one run of a kernel, whatever the machine. Kernels of equal cost take equally long.
struct KernelCost {
  std::string_view kernel;               ///< name of a kernel, as traces show it; a literal
  std::string_view matrix{};             ///< of a product: the weight, as TraceEvent::matrix says; a literal
  DType dtype = DType::f32;              ///< of its first input; of a product, the narrower of its two inputs'
  DType result = DType::f32;             ///< of what it writes
  std::array<std::uint64_t, 5> sizes{};  ///< rows, columns and depth of a product; batch, queries, keys, heads and elements of a
                                         ///< head of attention; elsewhere the result's sizes; 0 where there are fewer
  double flops = 0;                 ///< of products and attention: only the query-key pairs that the mask leaves; elsewhere 0
  std::uint64_t bytes_read = 0;     ///< elements that it must read at least once
  std::uint64_t bytes_written = 0;  ///< elements that it writes

  /// Returns the sizes as a trace's event has them.
  std::array<std::uint32_t, 5> traced_sizes() const {
    std::array<std::uint32_t, 5> traced{};
    for (std::size_t i = 0; i < traced.size(); ++i)
      traced[i] = static_cast<std::uint32_t>(std::min<std::uint64_t>(sizes[i], std::numeric_limits<std::uint32_t>::max()));
    return traced;
  }

  friend bool operator==(const KernelCost&, const KernelCost&) = default;
};

/// A call of a communicator. Its group_sequence is 0: players number operations themselves.
struct ProgramCall : OperationInfo {
  Start* algorithm = nullptr;
  Arguments arguments{};                 ///< counts and ranks, without addresses
  std::uint64_t sent_from = kElsewhere;  ///< where in `recv` the bytes of `send` lie; kElsewhere: not there
  std::uint64_t received_by_all = 0;     ///< Collective::received_by_all(); 0 without Recorder::count_received()
  static constexpr std::uint64_t kElsewhere = ~std::uint64_t{0};

  friend bool operator==(const ProgramCall& one, const ProgramCall& other) {
    const auto all = [](const ProgramCall& call) {
      return std::tuple(call.algorithm, call.arguments.send.count, call.arguments.recv.count, call.sent_from,
                        call.arguments.expected.signature);
    };
    return static_cast<const OperationInfo&>(one) == other && all(one) == all(other) &&
           one.arguments.chunks == other.arguments.chunks && one.arguments.send_chunks == other.arguments.send_chunks;
  }
};

enum class ItemKind : std::uint8_t { kernel, post, call, wait, take, give, stage };

/// Parts of a pass. The items behind one of kind stage belong to its part, until the next one.
enum class PassPart : std::uint8_t { embedding, attention, mlp, head, update };

/// An item of a program; drawn at the top of this file.
struct ProgramItem {
  ItemKind kind = ItemKind::kernel;
  std::uint8_t stream = 0;
  std::uint16_t unused = 0;
  std::uint32_t index = 0;
  std::uint64_t amount = 0;

  friend bool operator==(const ProgramItem&, const ProgramItem&) = default;
};
static_assert(sizeof(ProgramItem) == 16);

/// The items that a rank executes in one pass. Costs and calls stand in the order in which the items first name them, so programs
/// with equal items, costs and calls do the same.
struct Program {
  std::vector<ProgramItem> items;
  std::vector<KernelCost> costs;
  std::vector<ProgramCall> calls;
  std::map<std::uint64_t, std::vector<int>> groups;  ///< by number: world ranks of its members, in group order
  CategoryBytes held_at_begin{};                     ///< memory of the rank's heap that was in use before the first item
};

}  // namespace tsprun::detail
