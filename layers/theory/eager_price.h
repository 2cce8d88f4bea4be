// What kernels that touch each element take in a framework that doesn't fuse them, as PyTorch without torch.compile: every
// operation of the model's code is a kernel, which reads its operands and writes its result. Sums, products and exponentials are
// computed in f32 at least, between casts, as Llama's code does (pytorch/torchtitan torchtitan/models/norms.py and
// models/llama/model.py of 2024).
//
//   kernel            operations of it, forward or backward                                    elements moved: own type  f32
//   casts norm              cast, x², mean, x · rsqrt, cast, · gain                                                   2 5    2
//   norm backward     dy · x̂, its sum, dy · gain, cast, · rsqrt, · x, its sum, x¹, 2x, · dx², their sum, cast   6         15    2
//   rope              cast, complex product, cast                                                               0          2    2
//   swiglu, geglu     activation, product                                                                       5          0    0
//   … backward        two products, the activation's backward pass                                              9          0    0
//   loss              cast, log-softmax                                                                         0          2    1
//   loss backward     zeros, log-softmax's backward pass, cast                                                  0          4    1
//
// Layer norms, GELU, sums and dropout have one kernel each there, too. What is as large as a row, such as its mean, counts
// nothing.
#pragma once

#include "core/program/program.h"
#include "layers/theory/machine.h"

#include <optional>

namespace tsprun::detail::theory {

/// Returns the seconds that all operations take for which a kernel stands, each with its launch; nothing if it is one kernel
/// there, too. `layer_norms`: the model's norms are layer norms.
std::optional<double> eager_seconds(const KernelCost& cost, const Machine& machine, bool layer_norms);

}  // namespace tsprun::detail::theory
