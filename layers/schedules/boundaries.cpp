// Sends and receives residuals and their gradients.
#include "layers/schedules/boundaries.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tsprun::detail {

CallOptions Boundaries::options(const ModelTask& task) const {
  const std::size_t stages = static_cast<std::size_t>(stages_.size());
  return {.purpose = Purpose::activations,
          .tag = static_cast<std::int32_t>(2 * (task.micro_batch * stages + task.boundary) + (task.gradient ? 1 : 0))};
}

void Boundaries::complete(Sent& sent) {
  rank_.wait(sent.work);
  sent = {};
}

void Boundaries::send(const ModelTask& task, OwnedTensor tensor) {
  Sent& sent = sent_[task.gradient ? 1 : 0];
  complete(sent);
  sent.tensor = std::move(tensor);
  const int to = static_cast<int>(task.boundary) + (task.gradient ? 0 : 1);
  sent.work = stages_.post_send(buffer_of(ConstTensor(sent.tensor.view())), to, options(task));
}

void Boundaries::receive(const ModelTask& task, const Tensor& tensor) {
  const int from = static_cast<int>(task.boundary) + (task.gradient ? 1 : 0);
  rank_.wait(stages_.post_recv(buffer_of(tensor), from, options(task)));
}

void Boundaries::finish() {
  for (Sent& sent : sent_) complete(sent);
}

}  // namespace tsprun::detail
