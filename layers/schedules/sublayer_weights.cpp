// Implements weights that every rank has, whose gradients are all-reduced.
#include "layers/schedules/sublayer_weights.h"

#include "layers/schedules/all_reduce.h"

namespace tsprun::detail {

PackPlan CopiedWeights::stored(PackPlan whole) const {
  for (PartPlan& part : whole.parts) part.counted = axis_.rank() == 0;
  return whole;
}

void CopiedWeights::written(std::size_t pack) {
  add_own();
  if (axis_.size() == 1 || !micro_batch().last()) return;
  summing_.push_back(post_sum(axis_, store().gradients(pack), {.stream = Stream::gradients, .purpose = Purpose::gradients}));
}

void CopiedWeights::end() {
  for (const Work& work : summing_) rank().wait(work);
  summing_.clear();
}

}  // namespace tsprun::detail
