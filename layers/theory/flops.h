// Floating-point operations of one training step on one rank: a multiply and an add are two. GEMMs and the two (backward: five)
// products of causal attention; norms, softmax and other pointwise work is left out, as in the paper's Table IV. Attention counts
// the pairs that causal masks leave, so it is about half of the paper's.
#pragma once

#include "layers/theory/layouts.h"

#include <cstdint>

namespace tsprun::theory {

struct PassFlops {
  double attention_linear = 0;  ///< W_Q, W_K, W_V, W_O of all layers
  double attention_core = 0;    ///< flash attention of all layers
  double mlp = 0;
  double head = 0;
  double total() const { return attention_linear + attention_core + mlp + head; }
};

struct StepFlops {
  PassFlops forward;
  PassFlops backward;  ///< with what --recompute makes again
  double total() const { return forward.total() + backward.total(); }
};

StepFlops step_flops(const Setting& setting, const Spread& spread, MeshPlace place);
/// Of the rank that computes most.
StepFlops most_flops(const Setting& setting, const Spread& spread);

}  // namespace tsprun::theory
