// The order of sublayers, and how each sublayer's communication begins during the one before. Forward: the MLP's first shard
// begins to travel during the last unit of attention. While an MLP computes with its last shard, the weights of the next
// attention's first turns (and, backward, its first K/V bucket) are already moving, in the memory that the previous shard has
// left. Backward: while an MLP computes with its first shard, the last gradients of the attention computed before it go home.
#include "layers/schedules/tsp/tsp.h"

#include "layers/schedules/packs.h"
#include "layers/schedules/tsp/attention.h"
#include "layers/schedules/tsp/mlp.h"

#include <optional>

namespace tsprun::detail {

namespace {

/// Methods are documented in StrategyPass.
class TspPass final : public StrategyPass {
 public:
  TspPass(const TspAxis& axis, const PassInputs& of)
      : StrategyPass(of),
        axis_(axis),
        own_(axis.rank, axis.owners, of.store, of.micro_batch, of.before_scatter),
        attention_(axis, own_, of),
        mlp_(axis, own_, of) {
    const Visit* const first = of.visits.next_of(of.micro_batch.number, false);
    fetch(first);
    attention_.begin_forward(first->layer);
  }

  void drop_attention(const kernels::AttentionDropout& of) override { attention_.drop(of); }
  void attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) override;
  void mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) override;
  void begin_backward() override { fetch(visits().next_of(micro_batch().number, true)); }
  void begin_block_backward(std::size_t /*layer*/, const AttentionSaved& attention) override { below_ = &attention; }
  void mlp_backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved) override;
  void attention_backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved) override;
  void end() override;

 private:
  /// Begins to gather what the rank owns of a visit's weights, where data ranks have parts of it.
  void fetch(const Visit* visit) {
    if (visit != nullptr) own_.fetch(pack_number(*visit));
  }
  void settle_mlp(std::size_t layer);
  void settle_attention();

  const TspAxis& axis_;
  OwnPacks own_;
  TspAttention attention_;
  TspMlp mlp_;
  std::optional<std::size_t> untold_;      // an attention pack whose gradients are complete when attention_ has settled
  const AttentionSaved* below_ = nullptr;  // what the attention of the current block saved, in the backward pass
};

void TspPass::attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) {
  arrive(false, layer, Sublayer::attention);
  fetch(visits().next_in_pass());
  attention_.forward(layer, y, x, saved, [&] { mlp_.begin_forward(visits().next_in_pass()->layer); });
  own_.used(attention_pack_number(layer));
}

void TspPass::mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) {
  arrive(false, layer, Sublayer::mlp);
  fetch(visits().next_in_pass());
  mlp_.forward(layer, y, x, saved, [&] {
    if (const Visit* const next = visits().next_in_pass()) attention_.begin_forward(next->layer);
  });
  own_.used(mlp_pack_number(layer));
}

void TspPass::mlp_backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved) {
  arrive(true, layer, Sublayer::mlp);
  fetch(visits().next_in_pass());
  mlp_.backward(layer, of, saved,
                {.last_step = [&] { attention_.begin_backward(visits().next_in_pass()->layer, *below_); },
                 .first_step_done = [&] { settle_attention(); }});
  own_.used(mlp_pack_number(layer));
  // Nothing of the ring is on its way, and data ranks can begin to sum.
  if (axis_.D() == 1 && own_.is_cut(mlp_pack_number(layer))) settle_mlp(layer);
}

void TspPass::attention_backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved) {
  const std::size_t pack = attention_pack_number(layer);
  arrive(true, layer, Sublayer::attention);
  fetch(visits().next_in_pass());
  attention_.backward(layer, of, saved, [&] {
    settle_mlp(layer);
    tell_gradients(mlp_pack_number(layer));
  });
  own_.used(pack);
  own_.complete(pack);  // the owners' sums are posted
  // Gradients of a later micro-batch are added to the store's when they have arrived.
  if (micro_batch().first()) tell_gradients(pack);
  else untold_ = pack;
}

void TspPass::settle_mlp(std::size_t layer) {
  mlp_.settle();
  own_.complete(mlp_pack_number(layer));
}

void TspPass::settle_attention() {
  attention_.settle();
  if (untold_) tell_gradients(*untold_);
  untold_.reset();
}

void TspPass::end() {
  mlp_.settle();
  settle_attention();
  own_.end();
  // Streams are ordered, so after these barriers everything that the pass began is complete, also weights that others read.
  for (const Stream stream : {Stream::weights, Stream::kv, Stream::gradients}) {
    axis_.rank.wait(axis_.group.post_barrier({.stream = stream}));
  }
}

}  // namespace

std::unique_ptr<StrategyPass> Tsp::begin(const PassInputs& of) const { return std::make_unique<TspPass>(axis_, of); }

}  // namespace tsprun::detail
