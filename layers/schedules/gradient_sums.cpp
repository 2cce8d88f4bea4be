// Posts a sum for each pack, and waits for all of them.
#include "layers/schedules/gradient_sums.h"

#include "layers/schedules/all_reduce.h"

namespace tsprun::detail {

namespace {

/// Returns the elements of a contiguous tensor that are a rank's chunk.
Tensor own_chunk(const Tensor& tensor, const Chunks& cut, int rank) {
  return tensor.reshaped({tensor.elements()}).slice(0, cut.offset(rank), cut.count(rank));
}

}  // namespace

void GradientSums::post(std::size_t pack, Purpose purpose) {
  posted_.resize(store_.packs());
  posted_[pack] = true;
  if (sharers_.size() * data_.size() == 1 || store_.is_cut(pack)) return;
  const Tensor gradients = store_.gradients(pack);
  if (gradients.elements() == 0) return;
  const CallOptions options{.stream = Stream::gradients, .purpose = purpose};
  if (!store_.shares_states()) {
    works_.push_back(post_sum(data_, gradients, options));
    return;
  }
  const Chunks cut = store_.states_cut(pack);
  const Tensor own = own_chunk(gradients, cut, sharers_.rank());
  works_.push_back(sharers_.post_reduce_scatter_v(buffer_of(ConstTensor(gradients)), buffer_of(own), cut.counts(sharers_.size()),
                                                  Reduction::sum, options));
  if (data_.size() > 1 && own.elements() > 0) works_.push_back(post_sum(data_, own, options));
}

void GradientSums::finish() {
  for (const Work& work : works_) rank_.wait(work);
  works_.clear();
  posted_.clear();
}

void GradientSums::gather_weights(std::size_t pack) {
  if (!store_.shares_states() || store_.is_cut(pack)) return;
  const Tensor values = store_.values(pack);
  if (values.elements() == 0) return;
  const Chunks cut = store_.states_cut(pack);
  works_.push_back(sharers_.post_all_gather_v(buffer_of(ConstTensor(own_chunk(values, cut, sharers_.rank()))), buffer_of(values),
                                              cut.counts(sharers_.size()),
                                              {.stream = Stream::gradients, .purpose = Purpose::weights}));
}

std::vector<double> GradientSums::squares() {
  if (store_.shares_states()) return shared_squares();
  std::vector<double> sums;
  for (const ParameterPart& part : store_.parts()) {
    if (part.plan.counted && part.gradient.elements() > 0) sums.push_back(rank_.compute().sum_of_squares(part.gradient));
  }
  return sums;
}

}  // namespace tsprun::detail
