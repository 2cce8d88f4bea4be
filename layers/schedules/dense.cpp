// Computes both sublayers with whole packs, and begins to move K and V while q is projected.
#include "layers/schedules/dense.h"

#include "core/kernels/check.h"
#include "layers/schedules/head_projection.h"
#include "layers/schedules/mlp_columns.h"
#include "layers/schedules/packs.h"

#include <array>
#include <optional>
#include <utility>

namespace tsprun::detail {

using kernels::Write;

namespace {

/// The matrices of an attention pack [W_K; W_V; W_Q; W_Oᵀ], or their gradients. Matrices that a layer doesn't have have no
/// rows.
struct AttentionMatrices {
  Tensor K, V, Q, Ot;
  AttentionMatrices(const Tensor& rows, const BlockSlice& slice, std::size_t d, const LayerSpec& layer) {
    const std::size_t k = layer.projects_keys() ? slice.kv.count * d : 0;
    const std::size_t v = layer.projects_values() ? k : 0;
    const std::size_t a = slice.queries.count * d;
    K = rows.slice(0, 0, k);
    V = rows.slice(0, k, v);
    Q = rows.slice(0, k + v, a);
    Ot = rows.slice(0, k + v + a, a);
  }
};

}  // namespace

Dense::Dense(Rank& rank, Communicator& sequence, const StrategyOptions& options, SlicePlace at, SequenceExchange exchange,
             std::unique_ptr<SublayerWeights> weights)
    : rank_(rank),
      sequence_(sequence),
      config_(options.config),
      dtype_(options.dtype),
      sums_(kernels::summed_in(options.dtype)),
      layers_(config_,
              [&](std::size_t number) {
                const LayerSpec& layer = config_.layer(number);
                const BlockSlice slice = BlockSlice::of(config_, layer, at);
                const kernels::HeadMap map = {
                    .group = config_.heads_per_kv_head(layer), .first_query = slice.queries.first, .first_kv = slice.kv.first};
                return OfLayer{.slice = slice,
                               .head_dim = config_.head_dim_of(layer),
                               .attention = make_sequence_attention(exchange, rank, sequence, options.dtype,
                                                                    {.queries = slice.queries.count,
                                                                     .kv = slice.kv.count,
                                                                     .head_dim = config_.head_dim_of(layer),
                                                                     .map = map,
                                                                     .scale = config_.attention_factor(layer),
                                                                     .bucket_heads = options.kv_bucket_heads})};
              }),
      weights_(std::move(weights)) {}

SavedSizes Dense::saved_sizes(std::size_t layer, const TokenLayout& tokens) const {
  const OfLayer& of = layers_[layer];
  SavedSizes sizes = of.attention->sizes(tokens);
  sizes.gate[2] = of.slice.rows;
  return sizes;
}

// --- a pass --------------------------------------------------------------------------------------------------------------------

/// Methods are documented in StrategyPass.
class Dense::Pass final : public StrategyPass {
 public:
  Pass(const Dense& dense, const PassInputs& of)
      : StrategyPass(of),
        dense_(dense),
        rank_(dense.rank_),
        sequence_(dense.sequence_),
        config_(dense.config_),
        dtype_(dense.dtype_),
        sums_(dense.sums_),
        weights_(dense.weights_->begin(of)) {
    of_attention_.documents = of.documents.starts;
  }

  void drop_attention(const kernels::AttentionDropout& of) override { of_attention_.dropout = of; }
  void attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) override;
  void mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) override;
  void begin_backward() override { weights_->begin_backward(); }
  void begin_block_backward(std::size_t layer, const AttentionSaved& attention) override;
  void mlp_backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved) override;
  void attention_backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved) override;
  void end() override;

 private:
  ComputeStream& compute() const { return rank_.compute(); }
  OwnedTensor step(DType of, std::span<const std::size_t> sizes, std::string_view what) const {
    return rank_.tensor(Category::workspace, of, sizes, what);
  }
  AttentionHeads heads(std::size_t layer, const AttentionSaved& saved) const {
    return {rank_, dtype_, dense_.saved_sizes(layer, tokens()), saved, config_.layer(layer)};
  }
  void begin_attention(std::size_t layer, const AttentionSaved& saved);
  void project(const AttentionHeads& heads, const ConstTensor& X, const Tensor& rows, std::size_t layer,
               bool keys_at_hand = false);
  void add_lent(const AttentionSaved& saved, const Tensor& dk, const Tensor& dv) const;
  void lend(AttentionSaved& lender, OwnedTensor dk, OwnedTensor dv) const;
  std::array<Tensor, 2> lent_with_heads(std::size_t layer, const AttentionSaved& saved) const;
  Tensor gradients_of(std::size_t pack);
  void gradients_written(std::size_t pack);
  void tell_untold();
  HeadProjections projections(std::size_t layer) const;
  const BlockSlice& slice(std::size_t layer) const { return dense_.layers_[layer].slice; }
  SequenceAttention& attention(std::size_t layer) const { return *dense_.layers_[layer].attention; }
  AttentionMatrices matrices(std::size_t layer, const Tensor& rows) const {
    return {rows, slice(layer), dense_.layers_[layer].head_dim, config_.layer(layer)};
  }
  /// Returns b_1 of the slice's rows.
  Bias mlp_bias(std::size_t layer) const {
    return BlockBiases(store(), config_, layer).mlp.slice(slice(layer).first_row, slice(layer).rows);
  }

  const Dense& dense_;
  Rank& rank_;
  Communicator& sequence_;
  const ModelConfig& config_;
  const DType dtype_;
  const DType sums_;
  SequencePass of_attention_;
  const std::unique_ptr<WeightsPass> weights_;
  std::optional<std::size_t> untold_;      // a pack whose gradients were written and will be complete later
  const AttentionSaved* below_ = nullptr;  // what the current block's attention saved, in the MLP's backward pass
};

std::unique_ptr<StrategyPass> Dense::begin(const PassInputs& of) const { return std::make_unique<Pass>(*this, of); }

void Dense::Pass::begin_block_backward(std::size_t layer, const AttentionSaved& attention) {
  if (weights_->frees()) below_ = &attention;
  else begin_attention(layer, attention);
}

/// Begins to move K and V, if q needn't be projected again before.
void Dense::Pass::begin_attention(std::size_t layer, const AttentionSaved& saved) {
  if (!saved.q.exists() || attention(layer).exchanges()) return;
  attention(layer).begin(of_attention_, tokens(), config_.layer(layer).window, saved.keys(), saved.values());
}

/// Returns where the pack's gradients are to be written.
Tensor Dense::Pass::gradients_of(std::size_t pack) {
  const Tensor rows = weights_->gradients(pack);
  tell_untold();
  return rows;
}

void Dense::Pass::gradients_written(std::size_t pack) {
  weights_->written(pack);
  untold_ = pack;
  if (weights_->complete_on_stream()) tell_untold();
}

/// Tells that the gradients written last are complete.
void Dense::Pass::tell_untold() {
  if (untold_) tell_gradients(*untold_);
  untold_.reset();
}

void Dense::Pass::end() {
  weights_->end();
  tell_untold();
  if (sequence_.size() == 1) return;
  // Streams are ordered, so after these barriers everything that the pass began is complete, also K and V that others read.
  for (const Stream stream : {Stream::weights, Stream::kv, Stream::gradients}) {
    rank_.wait(sequence_.post_barrier({.stream = stream}));
  }
}

// --- attention ---------------------------------------------------------------------------------------------------------------

HeadProjections Dense::Pass::projections(std::size_t layer) const {
  return {rank_, store(), config_, layer, tokens().rotations(), head_owners(), documents().positions};
}

/// Computes q, k and v in the shapes of the exchange; k and v only if the layer has its own. They begin to move before q is
/// projected. `keys_at_hand`: those of the exchange are there already, so k and v are made again, for what goes into
/// norms, but don't move.
void Dense::Pass::project(const AttentionHeads& heads, const ConstTensor& X, const Tensor& rows, std::size_t layer,
                          bool keys_at_hand) {
  const AttentionMatrices W = matrices(layer, rows);
  const HeadProjections of_layer = projections(layer);
  const BlockSlice& slice = this->slice(layer);
  SequenceAttention& attention = this->attention(layer);
  OwnedTensor q_memory;
  OwnedTensor k_memory;
  OwnedTensor v_memory;
  Tensor q = heads.q;
  Tensor k = heads.k;
  Tensor v = heads.v;
  if (attention.exchanges()) {
    const SavedSizes own = attention.own_sizes(tokens());
    q = q_memory = step(dtype_, own.q, "queries of own tokens");
    if (heads.projects_keys) {
      k = k_memory = step(dtype_, own.kv, "keys of own tokens");
      v = v_memory = step(dtype_, own.kv, "values of own tokens");
    }
  }
  const Tensor k_product = heads.k_product.dims() > 0 ? heads.k_product : k;
  const Tensor v_product = heads.v_product.dims() > 0 ? heads.v_product : v;
  const Tensor q_product = heads.q_product.dims() > 0 ? heads.q_product : q;
  if (heads.projects_keys) {
    compute().gemm("W_K", matrix_of(k_product), X, W.K.transposed(0, 1));
    of_layer.finish_keys(slice.kv, k, k_product, v);
  }
  if (!W.V.empty()) {
    compute().gemm("W_V", matrix_of(v_product), X, W.V.transposed(0, 1));
    of_layer.value(slice.kv).finish(v, v_product);
  }
  if (!attention.exchanges()) attention.begin(of_attention_, tokens(), heads.window, k, v);
  compute().gemm("W_Q", matrix_of(q_product), X, W.Q.transposed(0, 1));
  of_layer.query(slice.queries).finish(q, q_product);
  rank_.look(Watched::queries, q);
  if (heads.projects_keys) {
    rank_.look(Watched::keys, k);
    rank_.look(Watched::values, v);
  }
  if (attention.exchanges() && heads.projects_keys && !keys_at_hand) attention.exchange(tokens(), heads, q, k, v);
  else if (attention.exchanges()) attention.exchange_queries(tokens(), heads, q);
}

void Dense::Pass::attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) {
  const std::size_t pack = pack_number(arrive(false, layer, Sublayer::attention));
  const Tensor rows = weights_->visit(pack);
  const AttentionHeads heads = this->heads(layer, saved);
  project(heads, x.merged(0), rows, layer);
  attention(layer).forward(of_attention_, tokens(), heads);
  rank_.look(Watched::attention_output, heads.o);
  rank_.look(Watched::log_sum_exp, heads.lse.view());
  compute().gemm("W_O", y.merged(0), matrix_of(heads.o), matrices(layer, rows).Ot);
  weights_->used(pack);
}

void Dense::Pass::attention_backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved) {
  const std::size_t pack = pack_number(arrive(true, layer, Sublayer::attention));
  const ConstTensor X = of.x.merged(0);
  const ConstTensor dY = of.dy.merged(0);
  const Tensor dX = of.dx.merged(0);
  const HeadProjections of_layer = projections(layer);
  const HeadProjection of_q = of_layer.query(slice(layer).queries);
  const Tensor rows = weights_->visit(pack);
  const AttentionMatrices W = matrices(layer, rows);
  AttentionHeads heads = this->heads(layer, saved);
  heads.lse.will_be_read();
  if (!saved.q.exists()) {  // else begin_attention() has begun to move K and V
    if (config_.layer(layer).norms_queries_and_keys()) heads.keep_products(rank_, dtype_, dense_.saved_sizes(layer, tokens()));
    project(heads, X, rows, layer, saved.k.exists());
  }

  const SavedSizes own = attention(layer).own_sizes(tokens());
  OwnedTensor dO = step(dtype_, own.o, "gradient of attention output");
  compute().gemm("dX of W_O", matrix_of(dO.view()), dY, W.Ot.transposed(0, 1));
  OwnedTensor dq = step(sums_, own.q, "gradient of queries");
  const std::array<Tensor, 2> with_heads = lent_with_heads(layer, saved);
  OwnedTensor dk;
  OwnedTensor dv;
  if (heads.projects_keys || !attention(layer).exchanges()) {
    dk = step(sums_, own.kv, "gradient of keys");
    dv = step(sums_, own.kv, "gradient of values");
  }
  Tensor packed;  // the pack's gradients

  const auto gradients_of_queries = [&] {
    const AttentionMatrices dW = matrices(layer, packed);
    compute().gemm("dW_Q", dW.Q, matrix_of(dq.view()).transposed(0, 1), X);
    compute().gemm("dW_O", dW.Ot, matrix_of(heads.o).transposed(0, 1), dY);
    of_q.add_gradients(dq);
    dq.reset();
  };
  // The products of the weights' gradients hide the way home of dK and dV if those travel, else the exchange of dX.
  const bool travels = sequence_.size() > 1;
  const auto queries_done = [&] {
    dO.reset();
    packed = gradients_of(pack);
    of_q.finish_backward(dq, heads.q_product);
    compute().gemm("dX of W_Q", dX, matrix_of(dq.view()), W.Q);
    if (travels) gradients_of_queries();
  };
  attention(layer).backward(of_attention_, tokens(), heads, {.d_o = dO, .dq = dq, .dk = dk, .dv = dv, .with_heads = with_heads},
                            saved.o.exists() ? SequenceAttention::Outputs::kept : SequenceAttention::Outputs::made_again,
                            queries_done);

  if (heads.projects_keys) {
    if (!attention(layer).exchanges()) add_lent(saved, dk, dv);
    of_layer.finish_backward(slice(layer).kv, dk, dv, heads.k_product, heads.v_product);
    compute().gemm("dX of W_K", dX, matrix_of(dk.view()), W.K, Write::add);
  } else if (!attention(layer).exchanges()) {
    lend(*saved.lender, std::exchange(dk, {}), std::exchange(dv, {}));
  }
  if (!W.V.empty()) compute().gemm("dX of W_V", dX, matrix_of(dv.view()), W.V, Write::add);
  of.tell_dx_complete();
  weights_->used(pack);
  if (!travels) gradients_of_queries();
  const AttentionMatrices dW = matrices(layer, packed);
  if (heads.projects_keys) {
    compute().gemm("dW_K", dW.K, matrix_of(dk.view()).transposed(0, 1), X);
    of_layer.key(slice(layer).kv).add_gradients(dk);
  }
  if (!W.V.empty()) {
    compute().gemm("dW_V", dW.V, matrix_of(dv.view()).transposed(0, 1), X);
    of_layer.value(slice(layer).kv).add_gradients(dv);
  }
  gradients_written(pack);
}

/// Adds to the gradients of a layer's k and v what layers that take them have found.
void Dense::Pass::add_lent(const AttentionSaved& saved, const Tensor& dk, const Tensor& dv) const {
  if (!saved.lent[0].exists()) return;
  compute().add(dk.merged(2), dk.merged(2), saved.lent[0]->merged(2));
  compute().add(dv.merged(2), dv.merged(2), saved.lent[1]->merged(2));
}

/// Adds to what is found of the gradients of the lender's k and v.
void Dense::Pass::lend(AttentionSaved& lender, OwnedTensor dk, OwnedTensor dv) const {
  add_lent(lender, dk, dv);
  lender.lent = {std::move(dk), std::move(dv)};
}

/// Returns where gradients of k and v that several layers take are summed while they are with the heads, in the shapes of the
/// exchange; no dims where there is none, or nobody else takes the layer's.
std::array<Tensor, 2> Dense::Pass::lent_with_heads(std::size_t layer, const AttentionSaved& saved) const {
  if (!attention(layer).exchanges()) return {};
  if (saved.lender != nullptr) {
    for (OwnedTensor& lent : saved.lender->lent) {
      if (lent.exists()) continue;
      lent = step(sums_, dense_.saved_sizes(layer, tokens()).kv, "gradient of keys or values that are lent");
      compute().fill_zero(lent);
    }
  }
  const std::array<OwnedTensor, 2>& lent = saved.lender == nullptr ? saved.lent : saved.lender->lent;
  if (!lent[0].exists()) return {};
  return {lent[0].view(), lent[1].view()};
}

// --- MLP -----------------------------------------------------------------------------------------------------------------------

void Dense::Pass::mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) {
  const std::size_t pack = pack_number(arrive(false, layer, Sublayer::mlp));
  const MlpMatrices W(weights_->visit(pack), config_);
  const MlpColumns columns(rank_, config_, dtype_, tokens().rows(), 0, slice(layer).rows, saved);
  columns.project(x.merged(0), W, mlp_bias(layer));
  const OwnedTensor a = columns.activation();
  compute().gemm("W_2", y.merged(0), a, W.W2t);
  weights_->used(pack);
}

void Dense::Pass::mlp_backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved) {
  const std::size_t pack = pack_number(arrive(true, layer, Sublayer::mlp));
  const ConstTensor X = of.x.merged(0);
  const ConstTensor dY = of.dy.merged(0);
  const MlpMatrices W(weights_->visit(pack), config_);
  const MlpColumns columns(rank_, config_, dtype_, tokens().rows(), 0, slice(layer).rows, saved);
  const Bias bias = mlp_bias(layer);
  if (!saved.gate.exists()) columns.project(X, W, bias);
  MlpColumns::Gradients d = columns.backward(dY, W);
  columns.input_gradient(of.dx.merged(0), d, W, Write::replace);
  of.tell_dx_complete();
  weights_->used(pack);
  // The MLP's weights have just been freed: in their memory the attention below can begin to gather its saved K and V.
  if (below_ != nullptr) begin_attention(layer, *std::exchange(below_, nullptr));
  columns.weight_gradients(MlpMatrices(gradients_of(pack), config_), bias, std::move(d), X, dY);
  gradients_written(pack);
}

}  // namespace tsprun::detail
