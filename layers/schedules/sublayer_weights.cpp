// Implements weights that every rank has, whose gradients are all-reduced.
#include "layers/schedules/sublayer_weights.h"

#include "layers/schedules/all_reduce.h"

#include <vector>

namespace tsprun::detail {

namespace {

class CopiedPass final : public WeightsPass {
 public:
  CopiedPass(Rank& rank, const PackRanks& with, const PassInputs& of)
      : WeightsPass(rank, of), axis_(*with.copies), packs_(rank, with, of.store, of.micro_batch, of.before_scatter) {
    fetch(visits().next_of(of.micro_batch.number, false));
  }

  void begin_backward() override { fetch(visits().next_of(micro_batch().number, true)); }
  Tensor visit(std::size_t pack) override {
    fetch(visits().next_in_pass());
    packs_.arrive(pack);
    return packs_.values(pack);
  }
  void used(std::size_t pack) override { packs_.used(pack); }
  bool frees() const override { return packs_.is_cut(0); }
  Tensor gradients(std::size_t pack) override {
    gradient_ = packs_.gradient(pack, Category::workspace, "weight gradients of a micro-batch");
    return gradient_.rows();
  }
  void written(std::size_t pack) override {
    gradient_.add();
    packs_.complete(pack);
    if (axis_.size() == 1 || !micro_batch().last() || packs_.is_cut(pack)) return;
    summing_.push_back(post_sum(axis_, store().gradients(pack), {.stream = Stream::gradients, .purpose = Purpose::gradients}));
  }

  void end() override {
    packs_.end();
    for (const Work& work : summing_) rank().wait(work);
    summing_.clear();
  }

 private:
  void fetch(const Visit* visit) {
    if (visit != nullptr) packs_.fetch(pack_number(*visit));
  }

  Communicator& axis_;
  OwnPacks packs_;
  MicroBatchGradient gradient_;
  std::vector<Work> summing_;
};

}  // namespace

std::unique_ptr<WeightsPass> CopiedWeights::begin(const PassInputs& of) const {
  return std::make_unique<CopiedPass>(rank_, with_, of);
}

}  // namespace tsprun::detail
