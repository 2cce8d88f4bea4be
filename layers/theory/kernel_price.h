// What a kernel of a recorded program takes on a machine.
//
// A kernel of a GPU takes the longer of its FLOPs over what the machine reaches (peak × gemm_efficiency; of flash attention, peak
// × attention_efficiency) and its bytes over what the memory reaches; the time of a launch comes on top. A product of an f32
// gradient and a bf16 operand counts as bf16: a GPU would round the gradient first. What sizes a fraction is looked up by is said
// in machine.h.
//
// A bias costs a GPU nothing: the product adds it before it writes its result, as the epilogues of cuBLASLt and hipBLASLt do for
// PyTorch (aten/src/ATen/native/cuda/Blas.cpp, gemm_and_bias) and llm.c (llmc/matmul.cuh), and where a sum over ranks comes in
// between, the kernel behind it, as Megatron-LM's fused bias, dropout and sum.
//
// Kernels that touch each element are one each, or those of a framework that doesn't fuse them (eager_price.h).
//
// Attention that isn't fused is the kernels of which it then consists, each with its launch. A pass makes all scores, those that
// a mask hides too, and every kernel reads or writes them: forward q·kᵀ, softmax, p·v; backward pᵀ·do, do·vᵀ, the softmax's
// backward pass, ds·k, dsᵀ·q; and in training with dropout of probabilities a kernel of each pass that also moves a byte of each
// one's mask. Copies, and masks of their own, aren't counted.
#pragma once

#include "core/program/program.h"
#include "layers/layout/setting.h"
#include "layers/theory/machine.h"

#include <functional>

namespace tsprun::detail::theory {

/// What a price depends on besides a kernel's sizes.
struct PriceFacts {
  bool drops = false;         ///< training drops probabilities of attention, which costs time where that isn't fused
  bool layer_norms = false;   ///< the model's norms are layer norms
  DType dtype = DType::bf16;  ///< of the model's tensors

  /// Returns those of a setting; `training`: its steps, else forward passes.
  static PriceFacts of(const Setting& setting, bool training) {
    return {.drops = training && setting.model.attention_dropout > 0,
            .layer_norms = setting.model.layer_norms(),
            .dtype = setting.bytes.dtype()};
  }
};

/// Returns the seconds that a kernel takes. Throws Error(refused) if the machine doesn't state FLOP/s for its dtype, or has no
/// price for it.
double kernel_seconds(const KernelCost& cost, const Machine& machine, const PriceFacts& facts = {});

/// Returns how many kernels a host starts for one: none for a bias, several where nothing fuses them.
int kernel_launches(const KernelCost& cost, const Machine& machine, const PriceFacts& facts = {});

/// Returns the seconds of all kernels of a program, one after another; `price`: those of one.
double kernels_seconds(const Program& program, const std::function<double(const KernelCost&)>& price);

}  // namespace tsprun::detail::theory
