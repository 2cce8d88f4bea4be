// Posts a send_recv with both neighbours for each hop of a shard or a sum.
#include "layers/schedules/ring.h"

namespace tsprun::detail {

namespace {

int right_of(const Communicator& axis) { return (axis.rank() + 1) % axis.size(); }
int left_of(const Communicator& axis) { return (axis.rank() + axis.size() - 1) % axis.size(); }

}  // namespace

RingShards::RingShards(Rank& rank, Communicator& axis, const Tensor& own, ShardRows rows, const CallOptions& options,
                       std::string what)
    : rank_(rank), axis_(axis), rows_of_(std::move(rows)), options_(options), what_(std::move(what)), current_(own) {}

void RingShards::fetch(std::size_t step) {
  if (step != fetched_ + 1 || step >= static_cast<std::size_t>(axis_.size())) return;
  at(fetched_);
  fetched_ = step;
  next_.tensor =
      rank_.tensor(Category::communication, current_.dtype(), {rows_of_(shard_at(axis_, step)), current_.size(1)}, what_);
  next_.work =
      axis_.post_send_recv(buffer_of(current_), right_of(axis_), buffer_of(next_.tensor.view()), left_of(axis_), options_);
}

const Tensor& RingShards::at(std::size_t step) {
  if (step == fetched_ && next_.tensor.exists()) {
    rank_.wait(next_.work);
    memory_ = std::move(next_.tensor);
    current_ = memory_;
  }
  return current_;
}

RingSums::RingSums(Rank& rank, Communicator& axis, const Tensor& own, ShardRows rows, const CallOptions& options,
                   std::string what, RingPart when)
    : rank_(&rank), axis_(&axis), own_(own), rows_of_(std::move(rows)), options_(options), what_(std::move(what)), when_(when) {}

Tensor RingSums::part(std::size_t step) {
  if (step == 0) return own_;
  if (when_ == RingPart::ahead) {
    leaving_ = std::move(part_);
  } else {
    // Ends when the sum has arrived and the right neighbour has taken the last part, which can then be freed.
    rank_->wait(arriving_.work);
    part_.reset();
  }
  part_ = rank_->tensor(Category::communication, own_.dtype(), {rows_of_(shard_at(*axis_, step)), width()}, what_);
  return part_;
}

void RingSums::pass_on(std::size_t step) {
  if (step == 0) return;  // stays at home
  if (when_ == RingPart::ahead) {
    rank_->wait(arriving_.work);
    leaving_.reset();
  }
  if (step > 1) rank_->compute().add(part_, arriving_.tensor, part_);
  // The next sum to arrive belongs to the next step's shard; after the last step, to this rank's own.
  arriving_.tensor.reset();
  arriving_.tensor = rank_->tensor(Category::communication, own_.dtype(), {rows_of_(shard_at(*axis_, step + 1)), width()}, what_);
  arriving_.work = axis_->post_send_recv(buffer_of(part_.view()), right_of(*axis_), buffer_of(arriving_.tensor.view()),
                                         left_of(*axis_), options_);
}

void RingSums::settle() {
  if (!arriving_.tensor.exists()) return;
  rank_->wait(arriving_.work);
  rank_->compute().add(own_, arriving_.tensor, own_);
  arriving_ = {};
  part_.reset();
}

}  // namespace tsprun::detail
