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

#include <cstdint>
#include <functional>
#include <string>

namespace tsprun::detail {

/// Returns the number of rows of shard r; all shards have the same width.
using ShardRows = std::function<std::size_t(int r)>;

/// Shards that travel round the ring. At most two are in this rank's memory at a time, its own not counted.
class RingWeights {
 public:
  /// Starts with this rank's shard `own` [rows(p), width], which must be contiguous and isn't changed. `what` names received
  /// shards in errors.
  RingWeights(Rank& rank, Communicator& axis, const Tensor& own, ShardRows rows, const CallOptions& options, std::string what);

  int step() const { return step_; }
  /// Returns the owner of the current shard.
  int shard() const { return (axis_.rank() - step_ + axis_.size()) % axis_.size(); }
  /// Returns the current shard.
  const Tensor& rows() const { return current_; }
  /// Returns whether this is the last step.
  bool last() const { return step_ + 1 == axis_.size(); }
  /// Begins to send the current shard to the right and to receive the next one from the left. Does nothing at the last step.
  void begin_hop();
  /// Waits for the next shard, which becomes the current one. Does nothing at the last step.
  void finish_hop();

 private:
  Rank& rank_;
  Communicator& axis_;
  ShardRows rows_of_;
  CallOptions options_;
  std::string what_;
  int step_ = 0;
  Tensor current_;
  OwnedTensor memory_;
  Transfer next_;
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
  Tensor part(int step);
  /// Adds the part of this step, which must be complete, to the sum so far, and begins to send the sum to the right.
  void pass_on(int step);
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
