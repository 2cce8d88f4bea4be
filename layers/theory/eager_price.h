// What kernels that touch each element take in a framework that doesn't fuse them, as PyTorch without torch.compile: every
// operation of the model's code is a kernel, which reads its operands and writes its result. Llama's code computes norms, rotary
// embeddings and the loss in f32 at least, between casts (pytorch/torchtitan torchtitan/models/norms.py, models/llama/model.py of
// 2024); backward passes are PyTorch's (tools/autograd/derivatives.yaml). All tensors have the model's dtype, gradients of
// activations, too.
//
//                            elements moved, in the
//     kernel            model's dtype   f32   casts   launches
//     norm                          2     5       2          8
//     norm backward                 6    17       2         16
//     rope                          0     2       2          3
//     swiglu, geglu                 5     0       0          2
//     ... backward                  9     0       0          3
//     loss                          0     2       1          2
//     loss backward                 0     4       1          3
//
// A norm is a cast, x², its mean, its reciprocal root r, x · r, a cast, and a product with the gain. Backward, with the gradient
// g: g · x · r and its sum for the gain's gradient, g · gain, a cast, · r; for r's gradient · x and its sum; that of the mean,
// divided by the row's length for each element; x², whose gradient is pow(x, 1) · 2 times that; the sum of both ways to x; and a
// cast. What is as large as a row costs a launch alone.
//
// Layer norms, GELU, sums and dropout have one kernel each there, too.
#pragma once

#include "core/program/program.h"
#include "layers/theory/machine.h"

#include <optional>

namespace tsprun::detail::theory {

/// The operations for which a kernel stands.
struct EagerPrice {
  double seconds;  ///< of all, each with its launch
  int launches;    ///< kernels that they are
};

/// Returns the price of a kernel's operations in a model of a dtype; nothing if it is one kernel there, too. `layer_norms`: the
/// model's norms are layer norms.
std::optional<EagerPrice> eager_price(const KernelCost& cost, const Machine& machine, DType dtype, bool layer_norms);

}  // namespace tsprun::detail::theory
