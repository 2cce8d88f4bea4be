// Payload bytes received in one forward and one backward pass, by purpose, summed over the ranks of an axis. The sums are
// integers that any correct schedule must meet to the byte. Bytes sent aren't counted, since they depend on the tree of a
// broadcast. flows.h counts a whole step on any mesh; this file has the vocabulary's part.
#pragma once

#include "layers/layout/setting.h"
#include "layers/schedules/head_plan.h"
#include "tsprun/types.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tsprun::detail::theory {

/// Bytes by purpose.
class PurposeBytes {
 public:
  std::uint64_t& operator[](Purpose purpose) { return bytes_[static_cast<std::size_t>(purpose)]; }
  std::uint64_t operator[](Purpose purpose) const { return bytes_[static_cast<std::size_t>(purpose)]; }
  std::uint64_t total() const;
  PurposeBytes& operator+=(const PurposeBytes& other);
  bool operator==(const PurposeBytes&) const = default;
  /// Returns what the counters say was received.
  static PurposeBytes received(const TrafficCounters& counters);

 private:
  std::array<std::uint64_t, kPurposes> bytes_{};
};

/// Bytes received in a forward and a backward pass, by purpose.
struct Traffic {
  PurposeBytes forward;
  PurposeBytes backward;

  std::uint64_t total() const { return forward.total() + backward.total(); }
  Traffic& operator+=(const Traffic& other);
  bool operator==(const Traffic&) const = default;
};

/// Returns the output head's traffic. `gathered_kept`: whether gathered activations are kept for backward rather than gathered
/// again; ignored by rotate_weights.
Traffic head(const Setting& setting, int ranks, HeadPlan plan, bool gathered_kept = true);
/// Returns the traffic of the vocabulary-parallel embedding, or output head, of plain tensor parallelism.
Traffic tp_embedding(const Setting& setting, int ranks);
Traffic tp_head(const Setting& setting, int ranks);

/// Returns the number of tokens B·S from which on TSP moves no more than TP, if K/V heads aren't copied: in forward and backward,
/// or in forward only. Infinity if it never does. Independent of D.
double tsp_tp_break_even(const Setting& setting, bool with_backward);

}  // namespace tsprun::detail::theory
