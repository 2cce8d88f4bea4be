// Shards (of weights, or of tokens' K and V) that travel round the ranks of an axis, and the sums of their gradients that follow
// them.
//
//   step          0      1      2     …    D−1
//   rank p has    p    p−1    p−2          p+1     shard (p − t) mod D; D − 1 hops to the right
//
// The gradient of shard r is summed in canonical order: the sum starts at rank r + 1, every rank adds its part when it has the
// shard, and after D − 1 hops the sum arrives home, where the owner's part is added last.
#pragma once

#include "core/rank/rank.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace tsprun::detail {

/// Returns the number of rows of shard r; all shards have the same width.
using ShardRows = std::function<std::size_t(int r)>;

/// Returns the owner of the shard that this rank has at `step`.
inline int shard_at(const Communicator& axis, std::size_t step) {
  return (axis.rank() + axis.size() - static_cast<int>(step)) % axis.size();
}

/// Shards that travel round the ring. At most two are in this rank's memory at a time, its own not counted.
class RingShards {
 public:
  /// Starts with this rank's shard `own` [rows(p), width], which must be contiguous and isn't changed. `what` names received
  /// shards in errors.
  RingShards(Rank& rank, Communicator& axis, const Tensor& own, ShardRows rows, const CallOptions& options, std::string what);

  /// Begins to send the shard of the step before to the right, when it has arrived, and to receive this step's from the left.
  /// Does nothing if that was begun already, at step 0, and after the last step.
  void fetch(std::size_t step);
  /// Waits for the shard of the step, frees the one before, and returns its rows. Call it for each step in order, after fetch().
  const Tensor& at(std::size_t step);

 private:
  Rank& rank_;
  Communicator& axis_;
  ShardRows rows_of_;
  CallOptions options_;
  std::string what_;
  Tensor current_;
  OwnedTensor memory_;
  std::size_t fetched_ = 0;  // the last step whose shard has arrived or is on its way
  Transfer next_;            // its shard, until it has arrived
};

/// The time at which a rank computes its part of a gradient.
enum class RingPart : std::uint8_t {
  after_arrival,  ///< after the sum so far has arrived: at most two gradient shards in memory, the own one not counted
  ahead           ///< while the sum so far is still on its way: at most three
};

/// Sums of gradients that follow the shards round the ring.
class RingSums {
 public:
  RingSums() = default;
  /// Sums into `own` [rows(p), width], which must be contiguous: the gradient of this rank's shard. `what` names memory in
  /// errors.
  RingSums(Rank& rank, Communicator& axis, const Tensor& own, ShardRows rows, const CallOptions& options, std::string what,
           RingPart when = RingPart::after_arrival);

  /// Returns memory for this rank's part of the gradient of step t's shard, which the caller overwrites. Unless parts are
  /// computed ahead, waits until the sum so far has arrived, so call it as late as possible. Call it for each step in order.
  Tensor part(std::size_t step);
  /// Adds the part of this step, which must be complete, to the sum so far, and begins to send the sum to the right.
  void pass_on(std::size_t step);
  /// Returns when the gradient of this rank's shard is complete.
  void settle();

 private:
  std::size_t width() const { return own_.size(1); }

  Rank* rank_ = nullptr;
  Communicator* axis_ = nullptr;
  Tensor own_;
  ShardRows rows_of_;
  CallOptions options_;
  std::string what_;
  RingPart when_ = RingPart::after_arrival;
  OwnedTensor part_;
  OwnedTensor leaving_;  // part of the step before, while the next is computed ahead
  Transfer arriving_;
};

}  // namespace tsprun::detail
