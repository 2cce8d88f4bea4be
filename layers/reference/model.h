// The whole model on one rank in plain loops: embedding, blocks, final norm, head, loss; forward, backward, greedy text and the
// optimizer's step. The oracle for every layout.
#pragma once

#include "layers/model/config.h"
#include "layers/reference/block.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::reference {

template <class T>
struct StepResult {
  double loss;            // mean over the predicted tokens, in nats
  std::vector<T> logits;  // [B, S, V]
  Tensors<T>
      gradients;  // of the loss, by the parameters' names; empty unless asked for. Tied weights have one gradient, their sum
};
/// ids [B, S]; labels [B, S], −1 where nothing is predicted; without any label the loss is 0 and so are the gradients. Throws
/// Error(refused): sizes that don't fit, an id or label outside of the vocabulary. `draw`: of dropout, where the model has it.
template <class T>
StepResult<T> model(const ModelConfig& config, std::size_t batch, std::size_t sequence, const Tensors<T>& weights,
                    std::span<const std::int32_t> ids, std::span<const std::int64_t> labels, bool with_gradients = true,
                    const DropoutDraw& draw = {});

/// The `count` ids that follow `prompt` when the likeliest token (the lowest id of equals) is taken each time; every token is a
/// full forward pass. Precondition: the prompt isn't empty.
template <class T>
std::vector<std::int32_t> generate_greedily(const ModelConfig& config, const Tensors<T>& weights,
                                            std::span<const std::int32_t> prompt, std::size_t count);

/// AdamW with the product's defaults.
struct AdamWOptions {
  double learning_rate = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  ///< of matrices; norm gains don't decay
  double clip = 1.0;           ///< the largest norm of all gradients together; 0: any
};
/// Zeros before the first step.
template <class T>
struct AdamWState {
  std::uint64_t step = 0;  ///< steps made
  Tensors<T> m;
  Tensors<T> v;
};
/// Clips the gradients by min(1, clip/(norm + 1e-6)), as PyTorch does, then makes the step. Arithmetic is in f64; weights and
/// moments are rounded to T once. Returns the norm of all gradients before clipping.
template <class T>
double adamw_step(const ModelConfig& config, const AdamWOptions& options, AdamWState<T>& state, Tensors<T>& weights,
                  const Tensors<T>& gradients);

}  // namespace tsprun::reference
