// Shards (of weights, or K and V of tokens) that travel round the ranks of an axis, and the sums of their gradients that travel
// after them.
//
//   step          0      1      2     …    D−1
//   rank p has    p    p−1    p−2          p+1     shard (p − t) mod D; D − 1 hops to the right
//
// The gradient of shard r is summed in canonical order: the sum starts at rank r + 1, every rank adds its part as it has the
// shard, and after D − 1 hops it arrives home, where the own part is added last.
#pragma once

#include "core/rank/rank.h"

#include <cstdint>
#include <functional>
#include <string>

namespace tsprun {

/// Rows of shard r, all of one width.
using ShardRows = std::function<std::size_t(int r)>;

/// Shards on their way round. At most two of them are here at a time, the own one not counted.
class RingWeights {
 public:
  /// `own`: this rank's shard [rows(p), width], contiguous, which stays as it is. `what` names copies in errors.
  RingWeights(Rank& rank, Communicator& axis, const Tensor& own, ShardRows rows, const CallOptions& options, std::string what);

  int step() const { return step_; }
  /// Whose shard is here.
  int shard() const { return (axis_.rank() - step_ + axis_.size()) % axis_.size(); }
  const Tensor& rows() const { return current_; }
  bool last() const { return step_ + 1 == axis_.size(); }
  /// The present shard begins to go on to the right, the next one to arrive.
  void begin_hop();
  /// Returns when the next one is here; then it is the present one. At the last step: nothing.
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

/// When a part of a gradient is computed.
enum class RingPart : std::uint8_t {
  after_arrival,  ///< when the sum so far is here: at most two shards of gradients at a time, the own one not counted
  ahead           ///< while it is still on its way: three
};

/// Sums of gradients on their way after the shards.
class RingSums {
 public:
  RingSums() = default;
  /// `own`: where the own shard's gradient belongs [rows(p), width], contiguous.
  RingSums(Rank& rank, Communicator& axis, const Tensor& own, ShardRows rows, const CallOptions& options, std::string what,
           RingPart when = RingPart::after_arrival);

  /// Where this rank's part of the gradient of step t's shard shall be computed, from scratch. Waits until the sum so far is
  /// here unless parts are computed ahead of it, so it is called as late as possible. Steps come in order.
  Tensor part(int step);
  /// The part is complete: it is added to the sum so far, which goes on to the right.
  void pass_on(int step);
  /// Returns when the own shard's gradient is complete.
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
  OwnedTensor leaving_;  // the last step's part, where the next is computed ahead
  Transfer arriving_;
};

}  // namespace tsprun
