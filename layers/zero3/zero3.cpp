#include "layers/zero3/zero3.h"

#include "core/kernels/check.h"
#include "layers/tsp/packs.h"

namespace tsp {

using kernels::Rotation;
using kernels::Write;

/// q, k, v, o, lse of all heads: what is saved, or memory of this visit.
struct Zero3::Heads {
  OwnedTensor q_memory, k_memory, v_memory, o_memory, lse_memory;
  Tensor q, k, v, o, lse;
};

/// Gate and up pre-activations [B·S_p, f].
struct Zero3::Columns {
  OwnedTensor gate_memory, up_memory;
  Tensor gate, up;
};

namespace {

/// [B, S_p, heads, d] as the matrix [B·S_p, heads·d].
template <class View>
View matrix_of(const View& heads) {
  return heads.merged(2).merged(0);
}

/// The matrices of an attention pack [W_K; W_V; W_Q; W_Oᵀ], or their gradients.
struct AttentionMatrices {
  Tensor K, V, Q, Ot;
  AttentionMatrices(const Tensor& rows, const ModelConfig& config) {
    const std::size_t k = config.kv_width();
    const std::size_t a = config.query_width();
    K = rows.slice(0, 0, k);
    V = rows.slice(0, k, k);
    Q = rows.slice(0, 2 * k, a);
    Ot = rows.slice(0, 2 * k + a, a);
  }
};

/// The matrices of an MLP pack [W_1; W_3; W_2ᵀ], or their gradients.
struct MlpMatrices {
  Tensor W1, W3, W2t;
  explicit MlpMatrices(const Tensor& rows) {
    const std::size_t f = rows.size(0) / 3;
    W1 = rows.slice(0, 0, f);
    W3 = rows.slice(0, f, f);
    W2t = rows.slice(0, 2 * f, f);
  }
};

PackPlan whole_attention(const ModelConfig& config, std::size_t layer) {
  return attention_pack_plan(config, layer, {0, config.query_heads}, {0, config.kv_heads});
}
PackPlan whole_mlp(const ModelConfig& config, std::size_t layer) { return mlp_pack_plan(config, layer, 0, config.intermediate); }

}  // namespace

Zero3::Zero3(Rank& rank, Communicator& axis, const Zero3Options& options)
    : rank_(rank),
      axis_(axis),
      config_(options.config),
      dtype_(options.dtype),
      sums_(kernels::summed_in(options.dtype)),
      attention_rows_(Chunks::balanced(axis.size(), pack_rows(whole_attention(config_, 0)))),
      mlp_rows_(Chunks::balanced(axis.size(), pack_rows(whole_mlp(config_, 0)))),
      attention_(make_sequence_attention(SequenceExchange::gather, rank, axis, options.dtype,
                                         {.queries = config_.query_heads,
                                          .kv = config_.kv_heads,
                                          .map = {.group = config_.query_heads / config_.kv_heads},
                                          .bucket_heads = options.kv_bucket_heads})) {}

// --- weights and gradients ---------------------------------------------------------------------------------------------------

PackPlan Zero3::attention_pack(std::size_t layer) const {
  return cut_pack(whole_attention(config_, layer), attention_rows_.offset(axis_.rank()), attention_rows_.count(axis_.rank()));
}

PackPlan Zero3::mlp_pack(std::size_t layer) const {
  return cut_pack(whole_mlp(config_, layer), mlp_rows_.offset(axis_.rank()), mlp_rows_.count(axis_.rank()));
}

void Zero3::fetch_attention(std::size_t layer) {
  attention_weights_.fetch(rank_, axis_, store_->values(attention_pack_number(layer), 0, kAttentionParts), attention_rows_);
}

void Zero3::fetch_mlp(std::size_t layer) {
  mlp_weights_.fetch(rank_, axis_, store_->values(mlp_pack_number(layer), 0, kMlpParts), mlp_rows_);
}

Tensor Zero3::begin_gradients(std::size_t pack, std::size_t parts, const Chunks& rows) {
  return scattered_.begin(rank_, axis_, store_->gradients(pack, 0, parts), rows);
}

void Zero3::begin_forward(const ParameterStore& store, const TokenLayout& tokens) {
  store_ = &store;
  tokens_ = &tokens;
  fetch_attention(0);
}

void Zero3::begin_backward() { fetch_mlp(config_.layers - 1); }

void Zero3::end() {
  scattered_.settle();
  // Whatever else was begun (weights that others still read) is complete when what follows it on its stream is.
  for (const Stream stream : {Stream::weights, Stream::kv, Stream::gradients}) {
    rank_.wait(axis_.post_barrier({.stream = stream}));
  }
}

// --- attention ---------------------------------------------------------------------------------------------------------------

Zero3::Heads Zero3::heads_room(const AttentionSaved& saved) const {
  const std::size_t B = tokens_->batch();
  const std::size_t S = tokens_->local();
  const std::size_t d = config_.head_dim;
  Heads heads;
  const auto room = [&](const OwnedTensor& kept, OwnedTensor& memory, DType of, std::initializer_list<std::size_t> sizes,
                        std::string_view what) -> Tensor {
    if (kept.exists()) return kept;
    memory = step(of, sizes, what);
    return memory;
  };
  heads.q = room(saved.q, heads.q_memory, dtype_, {B, S, config_.query_heads, d}, "queries");
  heads.k = room(saved.k, heads.k_memory, dtype_, {B, S, config_.kv_heads, d}, "keys");
  heads.v = room(saved.v, heads.v_memory, dtype_, {B, S, config_.kv_heads, d}, "values");
  heads.o = room(saved.o, heads.o_memory, dtype_, {B, S, config_.query_heads, d}, "attention output");
  heads.lse = room(saved.lse, heads.lse_memory, sums_, {B, config_.query_heads, S}, "log-sum-exp");
  return heads;
}

/// q, k, v; k and v begin to move before q is projected.
void Zero3::project(Heads& heads, const ConstTensor& X, const Tensor& rows) {
  const AttentionMatrices W(rows, config_);
  const Tensor& angles = tokens_->rope_table();
  compute().gemm(matrix_of(heads.k), X, W.K.transposed(0, 1));
  compute().rope(heads.k, angles, Rotation::forward);
  compute().gemm(matrix_of(heads.v), X, W.V.transposed(0, 1));
  attention_->begin(*tokens_, heads.k, heads.v);
  compute().gemm(matrix_of(heads.q), X, W.Q.transposed(0, 1));
  compute().rope(heads.q, angles, Rotation::forward);
}

void Zero3::attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) {
  fetch_mlp(layer);
  Heads heads = heads_room(saved);
  const Tensor& rows = attention_weights_.wait(rank_);
  project(heads, x.merged(0), rows);
  attention_->forward(*tokens_, heads.o, heads.lse, heads.q, heads.k, heads.v);
  compute().gemm(y.merged(0), matrix_of(heads.o), AttentionMatrices(rows, config_).Ot);
  attention_weights_.release();
}

void Zero3::attention_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                               const AttentionSaved& saved) {
  if (layer > 0) fetch_mlp(layer - 1);
  const ConstTensor X = x.merged(0);
  const ConstTensor dY = dy.merged(0);
  const Tensor dX = dx.merged(0);
  Heads heads = heads_room(saved);
  const Tensor& rows = attention_weights_.wait(rank_);
  const AttentionMatrices W(rows, config_);
  if (!saved.q.exists()) project(heads, X, rows);  // else K and V move since the MLP's visit

  OwnedTensor dO = step(dtype_, {x.size(0), x.size(1), config_.query_heads, config_.head_dim}, "gradient of attention output");
  compute().gemm(matrix_of(dO.view()), dY, W.Ot.transposed(0, 1));
  OwnedTensor dq = step(sums_, {x.size(0), x.size(1), config_.query_heads, config_.head_dim}, "gradient of queries");
  const OwnedTensor dk = step(sums_, {x.size(0), x.size(1), config_.kv_heads, config_.head_dim}, "gradient of keys");
  const OwnedTensor dv = step(sums_, {x.size(0), x.size(1), config_.kv_heads, config_.head_dim}, "gradient of values");
  attention_->backward(*tokens_, dq, dk, dv, dO, heads.o, heads.lse,
                       saved.o.exists() ? SequenceAttention::Outputs::kept : SequenceAttention::Outputs::made_again, heads.q,
                       heads.k, heads.v);
  dO.reset();

  // What dq is needed for hides the way home of dK and dV.
  const Tensor& angles = tokens_->rope_table();
  const AttentionMatrices dW(begin_gradients(attention_pack_number(layer), kAttentionParts, attention_rows_), config_);
  compute().rope(dq, angles, Rotation::inverse);
  compute().gemm(dX, matrix_of(dq.view()), W.Q);
  compute().gemm(dW.Q, matrix_of(dq.view()).transposed(0, 1), X);
  compute().gemm(dW.Ot, matrix_of(heads.o).transposed(0, 1), dY);
  dq.reset();
  attention_->finish_backward();
  compute().rope(dk, angles, Rotation::inverse);
  compute().gemm(dX, matrix_of(dk.view()), W.K, Write::add);
  compute().gemm(dX, matrix_of(dv.view()), W.V, Write::add);
  tell_input_gradient();
  attention_weights_.release();
  compute().gemm(dW.K, matrix_of(dk.view()).transposed(0, 1), X);
  compute().gemm(dW.V, matrix_of(dv.view()).transposed(0, 1), X);
  scattered_.scatter();
  tell_gradients(attention_pack_number(layer));
}

// --- MLP ---------------------------------------------------------------------------------------------------------------------

Zero3::Columns Zero3::columns_room(const MlpSaved& saved) const {
  Columns columns;
  if (saved.gate.exists()) {
    columns.gate = saved.gate->merged(0);
    columns.up = saved.up->merged(0);
  } else {
    columns.gate_memory = step(dtype_, {tokens_->rows(), config_.intermediate}, "gate");
    columns.up_memory = step(dtype_, {tokens_->rows(), config_.intermediate}, "up");
    columns.gate = columns.gate_memory;
    columns.up = columns.up_memory;
  }
  return columns;
}

void Zero3::mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) {
  if (layer + 1 < config_.layers) fetch_attention(layer + 1);
  const Columns columns = columns_room(saved);
  const MlpMatrices W(mlp_weights_.wait(rank_));
  compute().gemm(columns.gate, x.merged(0), W.W1.transposed(0, 1));
  compute().gemm(columns.up, x.merged(0), W.W3.transposed(0, 1));
  const OwnedTensor a = step(dtype_, {tokens_->rows(), config_.intermediate}, "gated activation");
  compute().swiglu(a, columns.gate, columns.up);
  compute().gemm(y.merged(0), a, W.W2t);
  mlp_weights_.release();
}

void Zero3::mlp_backward(std::size_t layer, const Tensor& dx, const ConstTensor& dy, const ConstTensor& x,
                         const MlpSaved& saved) {
  fetch_attention(layer);
  const ConstTensor X = x.merged(0);
  const ConstTensor dY = dy.merged(0);
  const Columns columns = columns_room(saved);
  const MlpMatrices W(mlp_weights_.wait(rank_));
  if (!saved.gate.exists()) {
    compute().gemm(columns.gate, X, W.W1.transposed(0, 1));
    compute().gemm(columns.up, X, W.W3.transposed(0, 1));
  }
  OwnedTensor dgate = step(sums_, {tokens_->rows(), config_.intermediate}, "gradient of gate");
  OwnedTensor dup = step(sums_, {tokens_->rows(), config_.intermediate}, "gradient of up");
  compute().gemm(dup, dY, W.W2t.transposed(0, 1));  // of the gated activation, until the next line
  compute().swiglu_backward(dgate, dup, dup, columns.gate, columns.up);
  compute().gemm(dx.merged(0), dgate, W.W1);
  compute().gemm(dx.merged(0), dup, W.W3, Write::add);
  tell_input_gradient();
  mlp_weights_.release();
  if (below_->q.exists()) attention_->begin(*tokens_, below_->k, below_->v);
  const MlpMatrices dW(begin_gradients(mlp_pack_number(layer), kMlpParts, mlp_rows_));
  compute().gemm(dW.W1, dgate->transposed(0, 1), X);
  compute().gemm(dW.W3, dup->transposed(0, 1), X);
  dgate.reset();
  dup.reset();
  const OwnedTensor a = step(dtype_, {tokens_->rows(), config_.intermediate}, "gated activation");
  compute().swiglu(a, columns.gate, columns.up);
  compute().gemm(dW.W2t, a->transposed(0, 1), dY);
  scattered_.scatter();
  tell_gradients(mlp_pack_number(layer));
}

}  // namespace tsp
