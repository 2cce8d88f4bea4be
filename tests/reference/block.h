// Reference for one transformer block, forward and backward, on one rank in plain loops:
//
//   x₂ = x  + m·D(attention(P(n·W_Qᵀ + b_Q), P(n·W_Kᵀ + b_K), n·W_Vᵀ + b_V)·W_Oᵀ + b_O)   with n = norm(x)
//   y  = x₂ + m·D(act(n)·W_downᵀ + b_down)                                                with n = norm(x₂)
//
// The model's features say what these are: norm is RMSNorm or LayerNorm; P is RoPE, or nothing if positions are learned; act(n)
// is swiglu(n·W_gateᵀ, n·W_upᵀ), gelu(n·W_gateᵀ) ∘ (n·W_upᵀ) or gelu(n·W_upᵀ + b_up); biases may be missing. D is dropout, m the
// residual multiplier. Norms stand as the layer says: where there is one behind a sublayer, D takes the norm of its result, where
// there is none before it, n is x or x₂, and where one is shared, the MLP's n is the attention's.
// Attention has the layer's window and soft cap of scores.
#pragma once

#include "layers/io/config.h"
#include "layers/parameters/parameters.h"
#include "tests/reference/dropout.h"
#include "tests/reference/layer.h"
#include "tests/reference/operations.h"

#include <cstddef>
#include <string>
#include <vector>

namespace tsprun::detail::reference {

/// Throws Error(refused), naming the tensor, if a parameter is missing or has another number of elements.
template <class T>
void check_tensors(const Tensors<T>& tensors, const std::vector<Parameter>& parameters);

/// Returns tensors of zeros in the parameters' shapes.
template <class T>
Tensors<T> zeros(const std::vector<Parameter>& parameters);

/// All intermediate results of a block's forward pass, named as in the formulas at the top of this file. N = B·S tokens.
template <class T>
struct BlockActivations {
  std::size_t batch;
  std::size_t sequence;
  std::vector<T> x;                     // [N, h]
  std::vector<T> norm1;                 // [N, h]
  std::vector<T> q_product, k_product;  // the same before the norms of heads; empty in models without them
  std::vector<T> q, k;                  // [N, n_h, d], [N, n_kv, d], after P
  std::vector<T> v;                     // [N, n_kv, d]
  Attention<T> attention;               // output [N, n_h, d]
  std::vector<T> attention_result;      // [N, h], before a norm behind the sublayer
  std::vector<T> x2;                    // [N, h]
  std::vector<T> norm2;                 // [N, h]
  std::vector<T> gate, up, act;         // [N, f]: pre-activations (the gate may be missing), and act of them
  std::vector<T> mlp_result;            // [N, h], before a norm behind the sublayer
  std::vector<T> y;                     // [N, h]
  DropoutDraw draw;                     // seed and step of this pass's dropout
};

/// Gradients of a layer's k and v, as other layers that take these have found them.
template <class T>
struct LentGradients {
  std::vector<T> dk, dv;  // empty until the first
};

/// Runs block `layer` forward on x [B, S, h]. `lender`: what the layer whose k and v it takes made, if it takes another's. Throws
/// Error(refused) if a weight is missing, or a weight or x has another size.
template <class T>
BlockActivations<T> block_forward(const ModelConfig& config, std::size_t layer, std::size_t batch, std::size_t sequence,
                                  const Tensors<T>& weights, const std::vector<T>& x, const DropoutDraw& draw = {},
                                  const BlockActivations<T>* lender = nullptr);
/// Runs block `layer` backward from dy [B, S, h]: returns dx [B, S, h] and adds the gradients of the block's weights to
/// `gradients`, which must hold them already (see zeros()). `lent`: those of k and v that other layers have found, to which a
/// layer that takes another's adds; null: no layer does so. Throws Error(refused) as block_forward().
template <class T>
std::vector<T> block_backward(const ModelConfig& config, std::size_t layer, const Tensors<T>& weights,
                              const BlockActivations<T>& saved, const std::vector<T>& dy, Tensors<T>& gradients,
                              LentGradients<T>* lent = nullptr);

/// Results of block().
template <class T>
struct BlockResult {
  std::vector<T> y;      // [B, S, h]
  std::vector<T> dx;     // [B, S, h]; empty without dy
  Tensors<T> gradients;  // by the weights' names; empty without dy
};
/// Runs block 0 on its own: forward, and backward if dy [B, S, h] is given. Throws Error(refused) as block_forward().
template <class T>
BlockResult<T> block(const ModelConfig& config, std::size_t batch, std::size_t sequence, const Tensors<T>& weights,
                     const std::vector<T>& x, const std::vector<T>& dy = {});

}  // namespace tsprun::detail::reference
