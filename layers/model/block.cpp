// Runs norms, strategy, dropout and residuals in order, and computes again what wasn't kept.
#include "layers/model/block.h"

#include "core/kernels/check.h"

#include <fmt/format.h>

namespace tsprun::detail {

using kernels::Write;

OwnedTensor Block::like(const Tensor& x, DType dtype, Category category, std::string_view what) const {
  return rank_.tensor(category, dtype, {x.size(0), x.size(1), x.size(2)}, what);
}

OwnedTensor Block::normed(const Tensor& x, const NormWeights& norm) const {
  OwnedTensor y = like(x, dtype_, Category::workspace, "normed input");
  apply_norm(rank_.compute(), config_, y, x, norm);
  return y;
}

void Block::dropout(const BlockPass& pass, const Tensor& y, const ConstTensor& x, std::size_t layer, DropoutSite site) const {
  rank_.compute().dropout(y.merged(0), x.merged(0), pass.draws->tokens(), pass.draws->at(layer, site, config_.residual_dropout));
}

/// Sets the dropout of attention probabilities for the next call of the strategy.
void Block::drop_attention(const BlockPass& pass, std::size_t layer) const {
  const double probability = pass.draws == nullptr ? 0 : config_.attention_dropout;
  pass.sublayers.drop_attention(probability == 0 ? kernels::AttentionDropout{} : pass.draws->of_attention(layer, probability));
}

/// Completes a sublayer's result before it is added to the residual: last bias and dropout.
void Block::end_sublayer(const BlockPass& pass, const Tensor& y, const Bias& bias, std::size_t layer, DropoutSite site) const {
  bias.add_to(rank_.compute(), y);
  if (drops(pass)) dropout(pass, y, y, layer, site);
}

/// Returns the gradient of a sublayer's result before bias, dropout and multiplier, and adds to the bias' gradient. Without
/// dropout and multiplier it is `d` itself, which is also the residual's gradient; else `memory` holds it.
ConstTensor Block::result_gradient(const BlockPass& pass, const Tensor& d, const Bias& bias, std::size_t layer, DropoutSite site,
                                   OwnedTensor& memory) const {
  Tensor of_result = d;
  const double multiplier = config_.residual_multiplier;
  if (drops(pass) || multiplier != 1)
    of_result = memory = like(d, d.dtype(), Category::workspace, "gradient of a sublayer's result");
  if (drops(pass)) dropout(pass, of_result, d, layer, site);
  if (multiplier != 1) rank_.compute().multiply(of_result, drops(pass) ? of_result : d, multiplier);
  bias.add_gradient(rank_.compute(), of_result);
  return of_result;
}

OwnedTensor Block::residual(const Tensor& x, const Tensor& y, Category category, std::string_view what) const {
  OwnedTensor sum = like(x, dtype_, category, what);
  if (config_.residual_multiplier == 1) rank_.compute().add(sum, x, y);
  else rank_.compute().add_multiple(sum, x, y, config_.residual_multiplier);
  return sum;
}

/// Allocates the tensors of `saved` that are kept.
void Block::make_room(const TokenLayout& tokens, std::size_t layer, Keep keep, BlockSaved& saved) const {
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
  saved.attention.lse = LogSumExps(rank_, Category::activations, kernels::summed_in(dtype_), sizes.lse, "saved log-sum-exp");
  if (recompute_ == Recompute::selective) return;
  saved.attention.q = room(sizes.q, "saved queries");
  room_for_kv();
  if (config_.layer(layer).query_key_norm) {
    saved.attention.query_product = room(sizes.query_product, "saved queries before their norm");
    saved.attention.key_product = room(sizes.key_product, "saved keys before their norm");
  }
  saved.mlp.gate = room(sizes.gate, "saved gate");
  if (config_.gated_mlp()) saved.mlp.up = room(sizes.gate, "saved up");
}

/// Returns "layer 1, attention, forward".
std::string Block::stage(std::size_t layer, std::string_view sublayer, std::string_view direction) {
  return fmt::format("layer {}, {}, {}", layer, sublayer, direction);
}

OwnedTensor Block::forward(const BlockPass& pass, std::size_t layer, OwnedTensor x, const BlockVectors& vectors, Keep keep,
                           BlockSaved& saved) const {
  const DType sums = kernels::summed_in(dtype_);
  const Category kept = keep == Keep::backward ? Category::activations : Category::workspace;
  make_room(pass.tokens, layer, keep, saved);
  saved.x1 = std::move(x);
  rank_.enter_stage(PassPart::attention, false, [&] { return stage(layer, "attention", "forward"); });
  rank_.look(Watched::input, saved.x1.view());
  {
    const OwnedTensor y = like(saved.x1, sums, Category::workspace, "attention result");
    drop_attention(pass, layer);
    pass.sublayers.attention_forward(layer, y, normed(saved.x1, vectors.attention), saved.attention);
    rank_.look(Watched::result, y.view());
    end_sublayer(pass, y, vectors.attention_output, layer, DropoutSite::attention);
    saved.x2 = residual(saved.x1, y, kept, "residual before the MLP");
  }
  if (keep != Keep::backward) saved.x1.reset();
  OwnedTensor x3;
  rank_.enter_stage(PassPart::mlp, false, [&] { return stage(layer, "MLP", "forward"); });
  rank_.look(Watched::input, saved.x2.view());
  {
    const OwnedTensor y = like(saved.x2, sums, Category::workspace, "MLP result");
    pass.sublayers.mlp_forward(layer, y, normed(saved.x2, vectors.mlp), saved.mlp);
    rank_.look(Watched::result, y.view());
    end_sublayer(pass, y, vectors.mlp_output, layer, DropoutSite::mlp);
    x3 = residual(saved.x2, y, kept, "residual after the block");
  }
  if (keep != Keep::backward) saved.x2.reset();
  return x3;
}

void Block::backward(const BlockPass& pass, std::size_t layer, const Tensor& d, const BlockVectors& vectors,
                     BlockSaved& saved) const {
  ComputeStream& compute = rank_.compute();
  pass.sublayers.begin_block_backward(layer, saved.attention);
  rank_.enter_stage(PassPart::mlp, true, [&] { return stage(layer, "MLP", "backward"); });
  rank_.look(Watched::result_gradient, d);
  {
    const OwnedTensor dx = like(d, d.dtype(), Category::workspace, "gradient of the MLP's input");
    OwnedTensor memory;
    const ConstTensor dy = result_gradient(pass, d, vectors.mlp_output, layer, DropoutSite::mlp, memory);
    pass.sublayers.mlp_backward(layer, {.dx = dx, .dy = dy, .x = normed(saved.x2, vectors.mlp)}, saved.mlp);
    rank_.look(Watched::input_gradient, dx.view());
    norm_backward(compute, config_, d, dx, saved.x2.view(), vectors.mlp, Write::add);
  }
  saved.mlp = {};
  saved.x2.reset();
  rank_.enter_stage(PassPart::attention, true, [&] { return stage(layer, "attention", "backward"); });
  rank_.look(Watched::result_gradient, d);
  const OwnedTensor dx = like(d, d.dtype(), Category::workspace, "gradient of the attention's input");
  OwnedTensor memory;
  const ConstTensor dy = result_gradient(pass, d, vectors.attention_output, layer, DropoutSite::attention, memory);
  drop_attention(pass, layer);
  pass.sublayers.attention_backward(layer, {.dx = dx, .dy = dy, .x = normed(saved.x1, vectors.attention)}, saved.attention);
  rank_.look(Watched::input_gradient, dx.view());
  norm_backward(compute, config_, d, dx, saved.x1.view(), vectors.attention, Write::add);
  saved = {};
}

}  // namespace tsprun::detail
