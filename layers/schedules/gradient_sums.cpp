// Posts an all_reduce for each pack, and waits for all of them.
#include "layers/schedules/gradient_sums.h"

#include "layers/schedules/all_reduce.h"

namespace tsprun::detail {

void GradientSums::post(std::size_t pack, Purpose purpose) {
  posted_.resize(store_.packs());
  posted_[pack] = true;
  if (data_.size() == 1) return;
  const Tensor gradients = store_.gradients(pack);
  if (gradients.elements() > 0) works_.push_back(post_sum(data_, gradients, {.stream = Stream::gradients, .purpose = purpose}));
}

void GradientSums::finish() {
  for (const Work& work : works_) rank_.wait(work);
  works_.clear();
  posted_.clear();
}

}  // namespace tsprun::detail
