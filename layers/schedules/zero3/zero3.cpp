// ZeRO-3: when weights are gathered and gradients leave. The computation itself is in layers/schedules/dense.cpp.
#include "layers/schedules/zero3/zero3.h"

namespace tsprun::detail {

namespace {

PackPlan whole_attention(const ModelConfig& config, std::size_t layer) {
  return attention_pack_plan(config, layer, {0, config.query_heads}, {0, config.kv_heads});
}
PackPlan whole_mlp(const ModelConfig& config, std::size_t layer) { return mlp_pack_plan(config, layer, 0, config.intermediate); }

PackPlan part_of(const PackPlan& whole, const Chunks& rows, int rank) {
  return cut_pack(whole, rows.offset(rank), rows.count(rank));
}

}  // namespace

Zero3::Zero3(Rank& rank, Communicator& axis, const Zero3Options& options)
    : Dense(rank, axis,
            {.config = options.config,
             .dtype = options.dtype,
             .slice = BlockSlice::whole(options.config),
             .exchange = SequenceExchange::gather,
             .kv_bucket_heads = options.kv_bucket_heads}),
      attention_{Chunks::balanced(axis.size(), pack_rows(whole_attention(options.config, 0))), {}},
      mlp_{Chunks::balanced(axis.size(), pack_rows(whole_mlp(options.config, 0))), {}} {}

PackPlan Zero3::attention_pack(std::size_t layer) const {
  return part_of(whole_attention(config(), layer), attention_.rows, sequence().rank());
}

PackPlan Zero3::mlp_pack(std::size_t layer) const { return part_of(whole_mlp(config(), layer), mlp_.rows, sequence().rank()); }

// --- weights and gradients of a visit ----------------------------------------------------------------------------------------

void Zero3::fetch(std::size_t pack) {
  Sublayer& of = sublayer(pack);
  of.gathered.fetch(rank(), sequence(), store().values(pack), of.rows);
}

void Zero3::weights_used(std::size_t pack) {
  sublayer(pack).gathered.release();
  // The MLP's weights have just been freed: in their memory the attention below can begin to gather its saved K and V.
  if (below_ != nullptr && !is_attention_pack(pack)) begin_attention(*below_);
}

Tensor Zero3::gradients(std::size_t pack) {
  return scattered_.begin(rank(), sequence(), store().gradients(pack), sublayer(pack).rows);
}

void Zero3::gradients_written(std::size_t pack) {
  scattered_.scatter();
  tell_gradients(pack);
}

// --- the order of visits: the next one's weights are fetched while this one is computed --------------------------------------

void Zero3::begin_forward(const ParameterStore& store, const TokenLayout& tokens) {
  Dense::begin_forward(store, tokens);
  fetch(attention_pack_number(0));
}

void Zero3::attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) {
  fetch(mlp_pack_number(layer));
  Dense::attention_forward(layer, y, x, saved);
}

void Zero3::mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) {
  if (layer + 1 < config().layers) fetch(attention_pack_number(layer + 1));
  Dense::mlp_forward(layer, y, x, saved);
}

void Zero3::begin_backward() { fetch(mlp_pack_number(config().layers - 1)); }

void Zero3::mlp_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                         const MlpSaved& saved) {
  fetch(attention_pack_number(layer));
  Dense::mlp_backward(layer, dx, dy, x, saved);
  below_ = nullptr;
}

void Zero3::attention_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                               const AttentionSaved& saved) {
  if (layer > 0) fetch(mlp_pack_number(layer - 1));
  Dense::attention_backward(layer, dx, dy, x, saved);
}

void Zero3::end() {
  scattered_.settle();
  Dense::end();
}

}  // namespace tsprun::detail
