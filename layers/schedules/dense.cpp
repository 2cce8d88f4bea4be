#include "layers/schedules/dense.h"

#include "core/kernels/check.h"
#include "layers/schedules/all_reduce.h"
#include "layers/schedules/mlp_columns.h"
#include "layers/schedules/packs.h"

#include <utility>

namespace tsprun::detail {

using kernels::Rotation;
using kernels::Write;

/// q, k, v and lse in the shapes of the exchange, and o: views of what is saved, or memory of this visit.
struct Dense::Heads {
  OwnedTensor q_memory, k_memory, v_memory, o_memory, lse_memory;
  Tensor q, k, v, o, lse;
};

namespace {

/// The matrices of an attention pack [W_K; W_V; W_Q; W_Oᵀ], or their gradients.
struct AttentionMatrices {
  Tensor K, V, Q, Ot;
  AttentionMatrices(const Tensor& rows, const BlockSlice& slice, std::size_t d) {
    const std::size_t k = slice.kv.count * d;
    const std::size_t a = slice.queries.count * d;
    K = rows.slice(0, 0, k);
    V = rows.slice(0, k, k);
    Q = rows.slice(0, 2 * k, a);
    Ot = rows.slice(0, 2 * k + a, a);
  }
};

/// Splits the parts of W_K and W_V so that their first `copied` rows, which another rank may count, are parts of their own.
std::vector<PartPlan> with_copies_apart(std::vector<PartPlan> parts, std::size_t copied) {
  std::vector<PartPlan> result;
  for (PartPlan& part : parts) {
    const bool kv = part.parameter.role == ParameterRole::key || part.parameter.role == ParameterRole::value;
    if (kv && copied > 0) {
      PartPlan copy = part;
      copy.block.rows = copied;
      part.block.first_row += copied;
      part.block.rows -= copied;
      result.push_back(std::move(copy));
    }
    result.push_back(std::move(part));
  }
  return result;
}

}  // namespace

Dense::Dense(Rank& rank, Communicator& sequence, const DenseOptions& options)
    : rank_(rank),
      sequence_(sequence),
      config_(options.config),
      dtype_(options.dtype),
      sums_(kernels::summed_in(options.dtype)),
      slice_(options.slice),
      attention_(make_sequence_attention(
          options.exchange, rank, sequence, options.dtype,
          {.queries = slice_.queries.count,
           .kv = slice_.kv.count,
           .map = {.group = config_.heads_per_kv_head(), .first_query = slice_.queries.first, .first_kv = slice_.kv.first},
           .bucket_heads = options.kv_bucket_heads})) {}

PackPlan Dense::attention_pack(std::size_t layer) const {
  PackPlan pack = attention_pack_plan(config_, layer, slice_.queries, slice_.kv);
  pack.parts = with_copies_apart(std::move(pack.parts), slice_.kv_copied * config_.head_dim);
  for (PartPlan& part : pack.parts) part.counted = sequence_.rank() == 0;
  return pack;
}

PackPlan Dense::mlp_pack(std::size_t layer) const {
  PackPlan pack = mlp_pack_plan(config_, layer, slice_.first_row, slice_.rows);
  for (PartPlan& part : pack.parts) part.counted = sequence_.rank() == 0;
  return pack;
}

SavedSizes Dense::saved_sizes(const ModelConfig&, const TokenLayout& tokens) const {
  SavedSizes sizes = SavedSizes::of(tokens, slice_.queries.count, slice_.kv.count, slice_.rows);
  const SequenceAttention::Form form = attention_->form(tokens);
  sizes.q = form.q;
  sizes.kv = form.kv;
  sizes.lse = form.lse;
  return sizes;
}

void Dense::begin_forward(const ParameterStore& store, const TokenLayout& tokens) {
  store_ = &store;
  tokens_ = &tokens;
}

void Dense::gradients_written(std::size_t pack) {
  if (sequence_.size() > 1) {
    const CallOptions options{.stream = Stream::gradients, .purpose = Purpose::gradients};
    summing_.push_back(post_sum(sequence_, store_->gradients(pack), options));
  }
  tell_gradients(pack);
}

void Dense::end() {
  for (const Work& work : summing_) rank_.wait(work);
  summing_.clear();
  if (sequence_.size() == 1) return;
  // Streams are ordered, so after these barriers everything that the pass began is complete, also K and V that others read.
  for (const Stream stream : {Stream::weights, Stream::kv, Stream::gradients}) {
    rank_.wait(sequence_.post_barrier({.stream = stream}));
  }
}

// --- attention ---------------------------------------------------------------------------------------------------------------

Dense::Heads Dense::heads_room(const AttentionSaved& saved) const {
  const SavedSizes sizes = saved_sizes(config_, *tokens_);
  Heads heads;
  const auto room = [&](const OwnedTensor& kept, OwnedTensor& memory, DType of, std::span<const std::size_t> shape,
                        std::string_view what) -> Tensor {
    if (kept.exists()) return kept;
    memory = step(of, shape, what);
    return memory;
  };
  heads.q = room(saved.q, heads.q_memory, dtype_, sizes.q, "queries");
  heads.k = room(saved.k, heads.k_memory, dtype_, sizes.kv, "keys");
  heads.v = room(saved.v, heads.v_memory, dtype_, sizes.kv, "values");
  heads.o = room(saved.o, heads.o_memory, dtype_, sizes.o, "attention output");
  heads.lse = room(saved.lse, heads.lse_memory, sums_, sizes.lse, "log-sum-exp");
  return heads;
}

BlockBiases Dense::biases(std::size_t layer) const {
  BlockBiases of(*store_, config_, layer);
  const std::size_t d = config_.head_dim;
  of.query = of.query.slice(slice_.queries.first * d, slice_.queries.count * d);
  of.key = of.key.slice(slice_.kv.first * d, slice_.kv.count * d);
  of.value = of.value.slice(slice_.kv.first * d, slice_.kv.count * d);
  of.mlp = of.mlp.slice(slice_.first_row, slice_.rows);
  return of;
}

/// Computes q, k and v in the shapes of the exchange. k and v begin to move before q is projected.
void Dense::project(Heads& heads, const ConstTensor& X, const Tensor& rows, std::size_t layer) {
  const AttentionMatrices W(rows, slice_, config_.head_dim);
  const BlockBiases b = biases(layer);
  OwnedTensor q_memory;
  OwnedTensor k_memory;
  OwnedTensor v_memory;
  Tensor q = heads.q;
  Tensor k = heads.k;
  Tensor v = heads.v;
  if (attention_->exchanges()) {
    const SavedSizes own = SavedSizes::of(*tokens_, slice_.queries.count, slice_.kv.count, slice_.rows);
    q = q_memory = step(dtype_, own.q, "queries of own tokens");
    k = k_memory = step(dtype_, own.kv, "keys of own tokens");
    v = v_memory = step(dtype_, own.kv, "values of own tokens");
  }
  compute().gemm(matrix_of(k), X, W.K.transposed(0, 1));
  b.key.add_to(compute(), matrix_of(k));
  tokens_->rotate(compute(), k, Rotation::forward);
  compute().gemm(matrix_of(v), X, W.V.transposed(0, 1));
  b.value.add_to(compute(), matrix_of(v));
  if (!attention_->exchanges()) attention_->begin(*tokens_, k, v);
  compute().gemm(matrix_of(q), X, W.Q.transposed(0, 1));
  b.query.add_to(compute(), matrix_of(q));
  tokens_->rotate(compute(), q, Rotation::forward);
  rank_.look(Watched::queries, q);
  rank_.look(Watched::keys, k);
  rank_.look(Watched::values, v);
  if (attention_->exchanges()) attention_->exchange(*tokens_, heads.q, heads.k, heads.v, q, k, v);
}

void Dense::begin_attention(const AttentionSaved& saved) {
  if (saved.k.exists() && !attention_->exchanges()) attention_->begin(*tokens_, saved.k, saved.v);
}

void Dense::attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) {
  const std::size_t pack = attention_pack_number(layer);
  Heads heads = heads_room(saved);
  const Tensor rows = weights(pack);
  project(heads, x.merged(0), rows, layer);
  attention_->forward(*tokens_, heads.o, heads.lse, heads.q, heads.k, heads.v);
  rank_.look(Watched::attention_output, heads.o);
  rank_.look(Watched::log_sum_exp, heads.lse);
  compute().gemm(y.merged(0), matrix_of(heads.o), AttentionMatrices(rows, slice_, config_.head_dim).Ot);
  weights_used(pack);
}

void Dense::attention_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                               const AttentionSaved& saved) {
  const std::size_t pack = attention_pack_number(layer);
  const ConstTensor X = x.merged(0);
  const ConstTensor dY = dy.merged(0);
  const Tensor dX = dx.merged(0);
  Heads heads = heads_room(saved);
  const Tensor rows = weights(pack);
  const AttentionMatrices W(rows, slice_, config_.head_dim);
  if (!saved.q.exists()) project(heads, X, rows, layer);  // else begin_attention() has begun to move K and V

  const SavedSizes own = SavedSizes::of(*tokens_, slice_.queries.count, slice_.kv.count, slice_.rows);
  OwnedTensor dO = step(dtype_, own.o, "gradient of attention output");
  compute().gemm(matrix_of(dO.view()), dY, W.Ot.transposed(0, 1));
  OwnedTensor dq = step(sums_, own.q, "gradient of queries");
  const OwnedTensor dk = step(sums_, own.kv, "gradient of keys");
  const OwnedTensor dv = step(sums_, own.kv, "gradient of values");
  attention_->backward(*tokens_, dq, dk, dv, dO, heads.o, heads.lse,
                       saved.o.exists() ? SequenceAttention::Outputs::kept : SequenceAttention::Outputs::made_again, heads.q,
                       heads.k, heads.v);
  dO.reset();

  const BlockBiases b = biases(layer);
  const AttentionMatrices dW(gradients(pack), slice_, config_.head_dim);
  tokens_->rotate(compute(), dq, Rotation::inverse);
  compute().gemm(dX, matrix_of(dq.view()), W.Q);
  const auto gradients_of_queries = [&] {
    compute().gemm(dW.Q, matrix_of(dq.view()).transposed(0, 1), X);
    compute().gemm(dW.Ot, matrix_of(heads.o).transposed(0, 1), dY);
    b.query.add_gradient(compute(), matrix_of(dq.view()));
    dq.reset();
  };
  // These products hide the way home of dK and dV if those travel, else the exchange of dX.
  const bool travels = sequence_.size() > 1;
  if (travels) gradients_of_queries();
  attention_->finish_backward();
  tokens_->rotate(compute(), dk, Rotation::inverse);
  compute().gemm(dX, matrix_of(dk.view()), W.K, Write::add);
  compute().gemm(dX, matrix_of(dv.view()), W.V, Write::add);
  tell_input_gradient();
  weights_used(pack);
  if (!travels) gradients_of_queries();
  compute().gemm(dW.K, matrix_of(dk.view()).transposed(0, 1), X);
  compute().gemm(dW.V, matrix_of(dv.view()).transposed(0, 1), X);
  b.key.add_gradient(compute(), matrix_of(dk.view()));
  b.value.add_gradient(compute(), matrix_of(dv.view()));
  gradients_written(pack);
}

// --- MLP ---------------------------------------------------------------------------------------------------------------------

void Dense::mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) {
  const std::size_t pack = mlp_pack_number(layer);
  const MlpColumns columns(rank_, config_, dtype_, tokens_->rows(), 0, slice_.rows, saved);
  const MlpMatrices W(weights(pack), config_);
  columns.project(x.merged(0), W, biases(layer).mlp);
  const OwnedTensor a = columns.activation();
  compute().gemm(y.merged(0), a, W.W2t);
  weights_used(pack);
}

void Dense::mlp_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                         const MlpSaved& saved) {
  const std::size_t pack = mlp_pack_number(layer);
  const ConstTensor X = x.merged(0);
  const ConstTensor dY = dy.merged(0);
  const MlpColumns columns(rank_, config_, dtype_, tokens_->rows(), 0, slice_.rows, saved);
  const MlpMatrices W(weights(pack), config_);
  const Bias bias = biases(layer).mlp;
  if (!saved.gate.exists()) columns.project(X, W, bias);
  MlpColumns::Gradients d = columns.backward(dY, W);
  columns.input_gradient(dx.merged(0), d, W, Write::replace);
  tell_input_gradient();
  weights_used(pack);
  columns.weight_gradients(MlpMatrices(gradients(pack), config_), bias, std::move(d), X, dY);
  gradients_written(pack);
}

}  // namespace tsprun::detail
