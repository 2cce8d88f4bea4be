// Fetches a sublayer's weights one sublayer ahead, and reduce-scatters gradients one behind.
#include "layers/schedules/zero3/gathered_weights.h"

#include "layers/schedules/packs.h"

#include <utility>

namespace tsprun::detail {

namespace {

static_assert(attention_pack_number(0) % 2 == 0 && mlp_pack_number(0) % 2 == 1, "as rows and gathered packs lie");

class GatheredPass final : public WeightsPass {
 public:
  GatheredPass(Rank& rank, Communicator& axis, const ByLayer<std::array<Chunks, 2>>& rows, const PassInputs& of)
      : WeightsPass(rank, of), axis_(axis), rows_(rows) {
    fetch(visits().next_of(of.micro_batch.number, false));
  }

  void begin_backward() override { fetch(visits().next_of(micro_batch().number, true)); }
  Tensor visit(std::size_t pack) override;
  void used(std::size_t pack) override { gathered(pack) = {}; }
  bool frees() const override { return true; }
  Tensor gradients(std::size_t pack) override;
  void written(std::size_t pack) override;
  bool complete_on_stream() const override { return axis_.size() == 1 || micro_batch().first(); }
  void end() override;

 private:
  const Chunks& rows(std::size_t pack) const { return rows_[layer_of(pack)][pack % 2]; }
  Transfer& gathered(std::size_t pack) { return gathered_[pack % 2]; }
  void fetch(const Visit* next);

  Communicator& axis_;
  const ByLayer<std::array<Chunks, 2>>& rows_;
  std::array<Transfer, 2> gathered_;  // attention, MLP: a pack's rows from the visit before its own until used()
  Transfer scattered_;                // this rank's part of a pack's gradients until their sums are complete
  MicroBatchGradient own_;            // where the sum of this rank's rows of that pack arrives
};

// --- weights -------------------------------------------------------------------------------------------------------------------

/// Begins to gather the pack of a visit, if there is one.
void GatheredPass::fetch(const Visit* next) {
  if (next == nullptr || axis_.size() == 1) return;
  const std::size_t pack = pack_number(*next);
  const Tensor own = store().values(pack);
  const Chunks& rows = this->rows(pack);
  auto& [tensor, work] = gathered(pack);
  tensor = rank().tensor(Category::communication, own.dtype(), {rows.total(), own.size(1)}, "weights of a sublayer");
  work = axis_.post_all_gather_v(buffer_of(ConstTensor(own)), buffer_of(tensor.view()), rows.counts(axis_.size(), own.size(1)),
                                 {.stream = Stream::weights, .purpose = Purpose::weights});
}

Tensor GatheredPass::visit(std::size_t pack) {
  fetch(visits().next_in_pass());  // its weights arrive while this pack is computed
  if (axis_.size() == 1) return WeightsPass::visit(pack);
  rank().wait(gathered(pack).work);
  return gathered(pack).tensor;
}

// --- gradients -----------------------------------------------------------------------------------------------------------------

Tensor GatheredPass::gradients(std::size_t pack) {
  end();  // the sums of the pack before
  if (axis_.size() == 1) return WeightsPass::gradients(pack);
  const Tensor own = store().gradients(pack);
  scattered_.tensor =
      rank().tensor(Category::communication, own.dtype(), {rows(pack).total(), own.size(1)}, "weight gradients of a sublayer");
  return scattered_.tensor;
}

void GatheredPass::written(std::size_t pack) {
  if (axis_.size() == 1) {
    add_own();
    return;
  }
  own_ = {rank(), micro_batch(), store().gradients(pack), Category::communication, "weight gradients of a micro-batch"};
  scattered_.work = axis_.post_reduce_scatter_v(buffer_of(ConstTensor(scattered_.tensor.view())), buffer_of(own_.rows()),
                                                rows(pack).counts(axis_.size(), own_.rows().size(1)), Reduction::sum,
                                                {.stream = Stream::gradients, .purpose = Purpose::gradients});
}

void GatheredPass::end() {
  if (!scattered_.tensor.exists()) return;
  rank().wait(scattered_.work);
  scattered_ = {};
  own_.add();
}

}  // namespace

GatheredWeights::GatheredWeights(Rank& rank, Communicator& axis, const ModelConfig& config)
    : rank_(rank), axis_(axis), rows_(config, [&](std::size_t layer) {
        return std::array{pack_cut(config, layer, PackKind::attention, axis.size()),
                          pack_cut(config, layer, PackKind::mlp, axis.size())};
      }) {}

std::unique_ptr<WeightsPass> GatheredWeights::begin(const PassInputs& of) const {
  return std::make_unique<GatheredPass>(rank_, axis_, rows_, of);
}

}  // namespace tsprun::detail
