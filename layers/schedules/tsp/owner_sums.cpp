// Posts the reductions to owners, and keeps what others' parts were computed into until it was sent.
#include "layers/schedules/tsp/owner_sums.h"

#include <utility>

namespace tsprun::detail {

OwnerSums::Part OwnerSums::part(std::size_t pack, int owner, std::size_t first, std::size_t count, std::size_t rows) {
  constexpr std::size_t kOnTheirWay = 2;
  while (on_their_way_.size() > kOnTheirWay) finish_oldest();
  Part part;
  if (owner == axis_.p()) {
    part.own = own_.gradient(pack, first, count, Category::communication, "attention gradient shard");
    part.rows = part.own.rows();
  } else {
    part.memory = axis_.rank.tensor(Category::communication, axis_.sums, {rows, axis_.h()}, "attention gradient shard");
    part.rows = part.memory;
  }
  return part;
}

void OwnerSums::send(Part part, int owner) {
  if (part.rows.elements() == 0) return;
  const Buffer buffer = buffer_of(part.rows);
  Work work = axis_.group.post_reduce(buffer, owner == axis_.p() ? buffer : Buffer(), Reduction::sum, owner,
                                      {.stream = Stream::gradients, .purpose = Purpose::gradients});
  on_their_way_.push_back({.part = std::move(part), .work = work});
}

/// Waits for the oldest sum, and adds it to those of earlier micro-batches if it is this rank's.
void OwnerSums::finish_oldest() {
  Leaving& oldest = on_their_way_.front();
  axis_.rank.wait(oldest.work);
  oldest.part.own.add();
  on_their_way_.pop_front();
}

void OwnerSums::settle() {
  while (!on_their_way_.empty()) finish_oldest();
}

}  // namespace tsprun::detail
