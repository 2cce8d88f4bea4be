// Floating-point operations of one training step on one rank, as formulas; a multiply and an add count as two. The model of time
// (step_time.h), model_flops() and the paper's tables use them; what `plan` prints as a rank's FLOPs is counted (step_counts.h).
//
// Counts GEMMs and the two products of causal attention (five in backward). Norms, softmax and other pointwise work are left out,
// as in the paper's Table IV. Attention counts only the query–key pairs that the causal mask, the layers' windows and documents
// leave, so it is about half of the paper's, or less.
#pragma once

#include "layers/theory/layouts.h"

#include <vector>

namespace tsprun::detail::theory {

/// Operations of one pass (forward or backward) over all layers and the head.
struct PassFlops {
  double attention_linear = 0;  ///< W_Q, W_K, W_V, W_O of all layers
  double attention_core = 0;    ///< flash attention of all layers
  double mlp = 0;               ///< all matrices of the MLPs of all layers, and of layers' own inputs
  double head = 0;              ///< the output head's products
  double total() const { return attention_linear + attention_core + mlp + head; }
};

/// Operations of one training step. Logits are not kept: a rank that has the whole vocabulary computes the head's gradients as
/// soon as it has a tile of logits, in the forward pass; others compute the logits again in the backward pass.
struct StepFlops {
  PassFlops forward;
  PassFlops backward;  ///< including what --recompute computes again
  double total() const { return forward.total() + backward.total(); }
};

/// Returns the query–key pairs of one query head in one of the setting's sequences, over all layers, on each rank of those that
/// cut the tokens; where heads are exchanged, those of the whole sequence.
std::vector<double> attention_pairs(const Setting& setting, const Layout& layout);
/// Returns how many times the mean of the ranks that cut the tokens is what the one of them attends to that has most pairs: how
/// unlike documents make their shares. 1 where heads are exchanged, or all of them have none.
double attention_imbalance(const Setting& setting, const Layout& layout);
/// Returns the operations of a forward pass without gradients, on the rank at `place`. The layout must be possible
/// (why_impossible()).
PassFlops forward_flops(const Setting& setting, const Layout& layout, MeshPlace place);
/// Returns the operations of a training step on the same rank.
StepFlops step_flops(const Setting& setting, const Layout& layout, MeshPlace place);
/// Returns the operations of the rank that computes most.
StepFlops most_flops(const Setting& setting, const Layout& layout);

}  // namespace tsprun::detail::theory
