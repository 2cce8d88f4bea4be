// What passes the boundaries of a pipeline's stage: the residual of this rank's tokens to the next stage, and its gradient to the
// stage before. Each message bears a tag of its own, from micro-batch, boundary and direction. Ranks that stand at the same place
// on all axes but pp's exchange them, since they have the same tokens.
#pragma once

#include "core/rank/rank.h"
#include "layers/schedules/tasks.h"

#include <array>

namespace tsprun::detail {

/// The messages of a rank in a step. Used by the rank's thread.
class Boundaries {
 public:
  /// Borrows the rank, and the ranks of the stages in their order.
  Boundaries(Rank& rank, Communicator& stages) : rank_(rank), stages_(stages) {}

  /// Begins to send `tensor` as the task says, and keeps it until the other stage has it. Waits for the message before in the
  /// same direction, so at most one in each is kept.
  void send(const ModelTask& task, OwnedTensor tensor);
  /// Receives a tensor of the same shape as the task says.
  void receive(const ModelTask& task, const Tensor& tensor);
  /// Waits until all that was sent has arrived.
  void finish();

 private:
  struct Sent {
    Work work;
    OwnedTensor tensor;
  };
  void complete(Sent& sent);
  CallOptions options(const ModelTask& task) const;

  Rank& rank_;
  Communicator& stages_;
  std::array<Sent, 2> sent_;  // of residuals, of gradients
};

}  // namespace tsprun::detail
