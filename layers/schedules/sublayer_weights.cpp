// Implements weights that every rank has, whose gradients are all-reduced.
#include "layers/schedules/sublayer_weights.h"

#include "layers/schedules/all_reduce.h"

#include <vector>

namespace tsprun::detail {

namespace {

class CopiedPass final : public WeightsPass {
 public:
  CopiedPass(Rank& rank, Communicator& axis, const ParameterStore& store, const Visits& visits, const MicroBatch& of)
      : WeightsPass(rank, store, visits, of), axis_(axis) {}

  void written(std::size_t pack) override {
    add_own();
    if (axis_.size() == 1 || !micro_batch().last()) return;
    summing_.push_back(post_sum(axis_, store().gradients(pack), {.stream = Stream::gradients, .purpose = Purpose::gradients}));
  }

  void end() override {
    for (const Work& work : summing_) rank().wait(work);
    summing_.clear();
  }

 private:
  Communicator& axis_;
  std::vector<Work> summing_;
};

}  // namespace

std::unique_ptr<WeightsPass> CopiedWeights::begin(const ParameterStore& store, const Visits& visits, const MicroBatch& of) const {
  return std::make_unique<CopiedPass>(rank_, axis_, store, visits, of);
}

}  // namespace tsprun::detail
