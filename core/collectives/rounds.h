// Rounds: how a direct algorithm moves a large buffer, so that a rank whose buffers don't lie in the heap needs room there for a
// part of them only. A round moves the same stretch of every chunk (broadcast, reduce: of the buffer), as an operation of its
// own. So the order of sums, the bytes and the bits are those of one operation.
#pragma once

#include "core/collectives/choice.h"
#include "core/collectives/collective.h"

#include <algorithm>
#include <cstddef>

namespace tsprun::detail {

/// Returns false if an operation doesn't go in rounds whatever its group is: nearly all calls.
inline bool may_go_in_rounds(const Arguments& call) {
  constexpr std::size_t kFewElements = kRoundPartBytes / 8;
  return std::max({call.chunks.largest(), call.send.count, call.recv.count}) > kFewElements;
}
/// Returns true if an operation goes in rounds, which all members of its group know: its algorithm is direct, and the buffer
/// larger than kRoundBytes. An all_to_all_v never does: a rank doesn't know what others send to each other.
bool goes_in_rounds(const Collective& me, const Arguments& call);
/// Carries it out.
Task in_rounds(Collective& me, const Arguments& call);

}  // namespace tsprun::detail
