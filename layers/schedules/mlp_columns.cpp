// Projects, activates and differentiates the columns, reusing what was saved.
#include "layers/schedules/mlp_columns.h"

#include "core/kernels/check.h"

namespace tsprun::detail {

using kernels::Write;

MlpColumns::MlpColumns(Rank& rank, const ModelConfig& config, DType dtype, std::size_t rows, std::size_t first, std::size_t count,
                       const MlpSaved& saved)
    : rank_(rank), gated_(config.gated_mlp()), silu_(config.mlp == Mlp::swiglu), gelu_(gelu_of(config.mlp)), dtype_(dtype) {
  const auto place = [&](const OwnedTensor& kept, OwnedTensor& memory, std::string_view what) -> Tensor {
    if (kept.exists()) return kept->merged(0).slice(1, first, count);
    memory = rank_.tensor(Category::workspace, dtype_, {rows, count}, what);
    return memory;
  };
  gate_ = place(saved.gate, gate_memory_, "gate");
  if (gated_) up_ = place(saved.up, up_memory_, "up");
}

void MlpColumns::project(const ConstTensor& X, const MlpMatrices& W, const Bias& bias) const {
  compute().gemm("W_1", gate_, X, W.W1.transposed(0, 1));
  bias.add_to(compute(), gate_);
  rank_.look(Watched::gate, gate_);
  if (!gated_) return;
  compute().gemm("W_3", up_, X, W.W3.transposed(0, 1));
  rank_.look(Watched::up, up_);
}

OwnedTensor MlpColumns::activation() const {
  OwnedTensor a = rank_.tensor(Category::workspace, dtype_, {gate_.size(0), gate_.size(1)}, "gated activation");
  if (silu_) compute().swiglu(a, gate_, up_);
  else if (gated_) compute().geglu(a, gate_, up_, gelu_);
  else compute().gelu(a, gate_, gelu_);
  return a;
}

MlpColumns::Gradients MlpColumns::backward(const ConstTensor& dY, const MlpMatrices& W) const {
  const DType sums = kernels::summed_in(dtype_);
  const auto room = [&](std::string_view what) {
    return rank_.tensor(Category::workspace, sums, {gate_.size(0), gate_.size(1)}, what);
  };
  Gradients d{.gate = room("gradient of gate"), .up = {}};
  if (!gated_) {
    compute().gemm("dX of W_2", d.gate, dY, W.W2t.transposed(0, 1));  // gradient of the activation, until the next line
    compute().gelu_backward(d.gate, d.gate, gate_, gelu_);
    return d;
  }
  d.up = room("gradient of up");
  compute().gemm("dX of W_2", d.up, dY, W.W2t.transposed(0, 1));  // gradient of the gated activation, until the next line
  if (silu_) compute().swiglu_backward(d.gate, d.up, d.up, gate_, up_);
  else compute().geglu_backward(d.gate, d.up, d.up, gate_, up_, gelu_);
  return d;
}

void MlpColumns::input_gradient(const Tensor& dX, const Gradients& d, const MlpMatrices& W, Write write) const {
  compute().gemm("dX of W_1", dX, d.gate, W.W1, write);
  if (gated_) compute().gemm("dX of W_3", dX, d.up, W.W3, Write::add);
}

void MlpColumns::weight_gradients(const MlpMatrices& dW, const Bias& bias, Gradients d, const ConstTensor& X,
                                  const ConstTensor& dY) const {
  compute().gemm("dW_1", dW.W1, d.gate->transposed(0, 1), X);
  if (gated_) compute().gemm("dW_3", dW.W3, d.up->transposed(0, 1), X);
  bias.add_gradient(compute(), d.gate.view());
  d = {};
  const OwnedTensor a = activation();
  compute().gemm("dW_2", dW.W2t, a->transposed(0, 1), dY);
}

}  // namespace tsprun::detail
