// The order of sublayers, and how each sublayer's communication begins during the one before. Forward: the MLP's first shard
// begins to travel during the last unit of attention. While an MLP computes with its last shard, the weights of the next
// attention's first turns (and, backward, its first K/V bucket) are already moving, in the memory that the previous shard has
// left. Backward: while an MLP computes with its first shard, the last gradients of the attention computed before it go home.
#include "layers/schedules/tsp/tsp.h"

#include "layers/schedules/packs.h"

namespace tsprun::detail {

void Tsp::begin_forward(const ParameterStore& store, const TokenLayout& tokens, Visits& visits) {
  axis_.store = &store;
  axis_.tokens = &tokens;
  visits_ = &visits;
  attention_.begin_forward(visits.upcoming(1)->layer);
}

void Tsp::attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) {
  visits_->arrive(false, layer, Sublayer::attention);
  attention_.forward(layer, y, x, saved, [&] { mlp_.begin_forward(visits_->next_in_pass()->layer); });
}

void Tsp::mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) {
  visits_->arrive(false, layer, Sublayer::mlp);
  mlp_.forward(layer, y, x, saved, [&] {
    if (const Visit* const next = visits_->next_in_pass()) attention_.begin_forward(next->layer);
  });
}

void Tsp::mlp_backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved) {
  visits_->arrive(true, layer, Sublayer::mlp);
  mlp_.backward(layer, of, saved,
                {.last_step = [&] { attention_.begin_backward(visits_->next_in_pass()->layer, *below_); },
                 .first_step_done = [&] { settle_attention(); }});
}

void Tsp::attention_backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved) {
  visits_->arrive(true, layer, Sublayer::attention);
  attention_.backward(layer, of, saved, [&] {
    mlp_.settle();
    tell(mlp_pack_number(layer));
  });
  // The owners' sums are posted. Those of a later micro-batch are added to the store's when they have arrived.
  if (axis_.micro_batch.first()) tell(attention_pack_number(layer));
  else untold_ = attention_pack_number(layer);
}

void Tsp::settle_attention() {
  attention_.settle();
  if (untold_) tell(*untold_);
  untold_.reset();
}

/// Tells that a pack's gradients are complete, unless those of further micro-batches are added to them.
void Tsp::tell(std::size_t pack) const {
  if (axis_.micro_batch.last()) tell_gradients(pack);
}

void Tsp::end() {
  mlp_.settle();
  settle_attention();
  // Streams are ordered, so after these barriers everything that the pass began is complete, also weights that others read.
  for (const Stream stream : {Stream::weights, Stream::kv, Stream::gradients}) {
    axis_.rank.wait(axis_.group.post_barrier({.stream = stream}));
  }
}

}  // namespace tsprun::detail
