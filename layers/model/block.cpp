#include "layers/model/block.h"

#include "core/kernels/check.h"

namespace tsp {

using kernels::Write;

OwnedTensor Block::like(const Tensor& x, DType dtype, Category category, std::string_view what) {
  return rank_.tensor(category, dtype, {x.size(0), x.size(1), x.size(2)}, what);
}

OwnedTensor Block::normed(const Tensor& x, const Tensor& gain) {
  OwnedTensor y = like(x, dtype_, Category::workspace, "normed input");
  rank_.compute().rms_norm(y, x, gain.select(0, 0), config_.norm_epsilon);
  return y;
}

OwnedTensor Block::residual(const Tensor& x, const Tensor& y, Category category, std::string_view what) {
  OwnedTensor sum = like(x, dtype_, category, what);
  rank_.compute().add(sum, x, y);
  return sum;
}

/// The tensors that are kept.
void Block::make_room(const TokenLayout& tokens, Keep keep, BlockSaved& saved) {
  const SavedSizes sizes = strategy_.saved_sizes(config_, tokens);
  const auto room = [&](std::span<const std::size_t> of, std::string_view what) {
    return rank_.tensor(Category::activations, dtype_, of, what);
  };
  const auto room_for_kv = [&] {
    saved.attention.k = room(sizes.kv, "saved keys");
    saved.attention.v = room(sizes.kv, "saved values");
  };
  if (keep == Keep::kv) room_for_kv();
  if (keep != Keep::backward || recompute_ == Recompute::full) return;
  saved.attention.o = room(sizes.o, "saved attention output");
  saved.attention.lse = rank_.tensor(Category::activations, kernels::summed_in(dtype_), sizes.lse, "saved log-sum-exp");
  if (recompute_ == Recompute::selective) return;
  saved.attention.q = room(sizes.q, "saved queries");
  room_for_kv();
  saved.mlp.gate = room(sizes.gate, "saved gate");
  saved.mlp.up = room(sizes.gate, "saved up");
}

OwnedTensor Block::forward(std::size_t layer, OwnedTensor x, const TokenLayout& tokens, const BlockGains& gains, Keep keep,
                           BlockSaved& saved) {
  const DType sums = kernels::summed_in(dtype_);
  const Category kept = keep == Keep::backward ? Category::activations : Category::workspace;
  make_room(tokens, keep, saved);
  saved.x1 = std::move(x);
  {
    const OwnedTensor y = like(saved.x1, sums, Category::workspace, "attention result");
    strategy_.attention_forward(layer, y, normed(saved.x1, gains.attention), saved.attention);
    saved.x2 = residual(saved.x1, y, kept, "residual before the MLP");
  }
  if (keep != Keep::backward) saved.x1.reset();
  OwnedTensor x3;
  {
    const OwnedTensor y = like(saved.x2, sums, Category::workspace, "MLP result");
    strategy_.mlp_forward(layer, y, normed(saved.x2, gains.mlp), saved.mlp);
    x3 = residual(saved.x2, y, kept, "residual after the block");
  }
  if (keep != Keep::backward) saved.x2.reset();
  return x3;
}

void Block::backward(std::size_t layer, const Tensor& d, const BlockGains& gains, BlockSaved& saved) {
  ComputeStream& compute = rank_.compute();
  strategy_.begin_block_backward(layer, saved.attention);
  {
    const OwnedTensor dx = like(d, d.dtype(), Category::workspace, "gradient of the MLP's input");
    strategy_.mlp_backward(layer, dx, d, normed(saved.x2, gains.mlp), saved.mlp);
    compute.rms_norm_backward(d, gains.mlp_gradient.select(0, 0), dx, saved.x2.view(), gains.mlp.select(0, 0),
                              config_.norm_epsilon, Write::add);
  }
  saved.mlp = {};
  saved.x2.reset();
  const OwnedTensor dx = like(d, d.dtype(), Category::workspace, "gradient of the attention's input");
  strategy_.attention_backward(layer, dx, d, normed(saved.x1, gains.attention), saved.attention);
  compute.rms_norm_backward(d, gains.attention_gradient.select(0, 0), dx, saved.x1.view(), gains.attention.select(0, 0),
                            config_.norm_epsilon, Write::add);
  saved = {};
}

}  // namespace tsp
