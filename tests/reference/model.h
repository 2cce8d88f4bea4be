// Reference for the whole model on one rank in plain loops: embedding, blocks, final norm, head and loss; forward, backward,
// greedy generation and the optimizer's step. Tests compare every layout with it.
#pragma once

#include "layers/io/config.h"
#include "tests/reference/block.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail::reference {

/// Loss, logits and gradients of one pass.
template <class T>
struct StepResult {
  double loss;            // mean over the predicted tokens, in nats
  std::vector<T> logits;  // [B, S, V]
  Tensors<T>
      gradients;  // of the loss, by the parameters' names; empty unless asked for. Tied weights have one gradient, their sum
};
/// Runs the model forward, and backward if `with_gradients` is true. ids [B, S]; labels [B, S], −1 where nothing is predicted;
/// without any label, the loss and the gradients are 0. `draw` selects the dropout, if the model has any. Throws Error(refused)
/// if sizes don't fit, if sequences are longer than the model's learned positions, or if an id or label is outside the
/// vocabulary.
template <class T>
StepResult<T> model(const ModelConfig& config, std::size_t batch, std::size_t sequence, const Tensors<T>& weights,
                    std::span<const std::int32_t> ids, std::span<const std::int64_t> labels, bool with_gradients = true,
                    const DropoutDraw& draw = {});

/// Returns the `count` ids that follow `prompt` if the likeliest token is taken each time (of equally likely ones, the lowest
/// id). Each token takes a full forward pass. Precondition: the prompt isn't empty. Throws Error(refused) as model().
template <class T>
std::vector<std::int32_t> generate_greedily(const ModelConfig& config, const Tensors<T>& weights,
                                            std::span<const std::int32_t> prompt, std::size_t count);

/// Hyperparameters of AdamW; the defaults are those of `tsprun train`.
struct AdamWOptions {
  double learning_rate = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  ///< for matrices only; norm gains and biases don't decay
  double clip = 1.0;           ///< largest global norm of the gradients; 0: no clipping
};
/// State of AdamW. A default-constructed state is that before the first step; adamw_step() then fills m and v with zeros.
template <class T>
struct AdamWState {
  std::uint64_t step = 0;  ///< number of steps made so far
  Tensors<T> m;
  Tensors<T> v;
};
/// Clips the gradients by the factor min(1, clip/(norm + 1e-6)), as PyTorch does, then updates state and weights. Arithmetic is
/// in f64; weights and moments are rounded to T once. Returns the norm of all gradients before clipping. Throws Error(refused) if
/// a tensor is missing or has another size.
template <class T>
double adamw_step(const ModelConfig& config, const AdamWOptions& options, AdamWState<T>& state, Tensors<T>& weights,
                  const Tensors<T>& gradients);

}  // namespace tsprun::detail::reference
