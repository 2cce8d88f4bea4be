// Reference for one transformer block, forward and backward, on one rank in plain loops:
//
//   x₂ = x  + attention(RoPE(n·W_Qᵀ), RoPE(n·W_Kᵀ), n·W_Vᵀ)·W_Oᵀ     with n = RMSNorm(x)
//   y  = x₂ + swiglu(n·W_gateᵀ, n·W_upᵀ)·W_downᵀ                      with n = RMSNorm(x₂)
//
// or GPT-2's block (gpt2_block.cpp), where D is dropout:
//
//   x₂ = x  + D(attention(n·W_Q + b_Q, n·W_K + b_K, n·W_V + b_V)·W_O + b_O)   with n = LayerNorm(x)
//   y  = x₂ + D(gelu(n·W_1 + b_1)·W_2 + b_2)                                  with n = LayerNorm(x₂)
#pragma once

#include "layers/io/config.h"
#include "layers/parameters/parameters.h"
#include "layers/reference/gpt2_operations.h"
#include "layers/reference/operations.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace tsprun::detail::reference {

/// Tensors by the names of layers/parameters/parameters.h. Elements are in row-major order; Llama's matrices are [out, in],
/// GPT-2's [in, out], as they are stored.
template <class T>
using Tensors = std::map<std::string, std::vector<T>, std::less<>>;

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
  std::vector<T> x;              // [N, h]
  std::vector<T> norm1;          // [N, h]
  std::vector<T> q, k;           // [N, n_h, d], [N, n_kv, d], after RoPE
  std::vector<T> v;              // [N, n_kv, d]
  Attention<T> attention;        // output [N, n_h, d]
  std::vector<T> x2;             // [N, h]
  std::vector<T> norm2;          // [N, h]
  std::vector<T> gate, up, act;  // [N, f]: pre-activations, swiglu of them; GPT-2: no gate, gelu of up
  std::vector<T> y;              // [N, h]
  DropoutDraw draw;              // seed and step of this pass's dropout
};

/// Runs block `layer` forward on x [B, S, h]. Throws Error(refused) if a weight is missing, or a weight or x has another size.
template <class T>
BlockActivations<T> block_forward(const ModelConfig& config, std::size_t layer, std::size_t batch, std::size_t sequence,
                                  const Tensors<T>& weights, const std::vector<T>& x, const DropoutDraw& draw = {});
/// Runs block `layer` backward from dy [B, S, h]: returns dx [B, S, h] and adds the gradients of the block's weights to
/// `gradients`, which must hold them already (see zeros()). Throws Error(refused) as block_forward().
template <class T>
std::vector<T> block_backward(const ModelConfig& config, std::size_t layer, const Tensors<T>& weights,
                              const BlockActivations<T>& saved, const std::vector<T>& dy, Tensors<T>& gradients);

/// Runs a block of GPT-2 forward, or backward, like the functions above, which call these once sizes have been checked.
template <class T>
BlockActivations<T> gpt2_block_forward(const ModelConfig& config, std::size_t layer, std::size_t batch, std::size_t sequence,
                                       const Tensors<T>& weights, const std::vector<T>& x, const DropoutDraw& draw);
template <class T>
std::vector<T> gpt2_block_backward(const ModelConfig& config, std::size_t layer, const Tensors<T>& weights,
                                   const BlockActivations<T>& saved, const std::vector<T>& dy, Tensors<T>& gradients);

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
