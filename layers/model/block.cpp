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

/// Returns what stands around the attention of a layer.
Block::Around Block::around_attention(std::size_t layer, const BlockVectors& vectors) {
  return {layer, DropoutSite::attention, vectors.attention, vectors.post_attention, vectors.attention_output};
}

/// Returns what stands around the MLP of a layer; where it shares the attention's norm, that one.
Block::Around Block::around_mlp(std::size_t layer, const BlockVectors& vectors) const {
  const NormWeights& before = config_.layer(layer).side_by_side() ? vectors.attention : vectors.mlp;
  return {layer, DropoutSite::mlp, before, vectors.post_mlp, vectors.mlp_output};
}

Block::Input Block::input(const Tensor& x, const NormWeights& norm) const {
  if (!norm.exists()) return {{}, x};
  Input taken{normed(x, norm), {}};
  taken.x = taken.memory;
  return taken;
}

/// Returns memory for a sublayer's result, in the type of sums.
OwnedTensor Block::room_for_result(const Tensor& x, const Around& of, Keep keep, std::string_view what) const {
  const DType sums = kernels::summed_in(dtype_);
  const bool stays = of.behind.exists() && keep == Keep::backward && sums == dtype_;
  return like(x, sums, stays ? Category::activations : Category::workspace, what);
}

/// Completes a sublayer's result before it is added to the residual: last bias, norm behind it, dropout. `kept` gets what went
/// into the norm.
void Block::end_sublayer(const BlockPass& pass, OwnedTensor& y, const Around& of, Keep keep, OwnedTensor& kept) const {
  of.bias.add_to(rank_.compute(), y);
  if (of.behind.exists()) norm_result(y, of.behind, keep, kept);
  if (drops(pass)) dropout(pass, y, y.view(), of.layer, of.site);
}

/// Replaces y by its norm, which takes y in the model's dtype.
void Block::norm_result(OwnedTensor& y, const NormWeights& norm, Keep keep, OwnedTensor& kept) const {
  const bool keeps = keep == Keep::backward;
  if (y->dtype() != dtype_) {
    OwnedTensor narrow =
        like(y, dtype_, keeps ? Category::activations : Category::workspace, "sublayer's result before its norm");
    rank_.compute().convert(narrow, y.view());
    apply_norm(rank_.compute(), config_, y, narrow.view(), norm);
    if (keeps) kept = std::move(narrow);
  } else if (keeps) {
    kept = std::move(y);
    y = like(kept, dtype_, Category::workspace, "normed result of a sublayer");
    apply_norm(rank_.compute(), config_, y, kept.view(), norm);
  } else {
    apply_norm(rank_.compute(), config_, y, y.view(), norm);
  }
}

/// Returns the gradient of a sublayer's result before bias, norm behind it, dropout and multiplier, and adds to the gradients of
/// bias and norm. If there are none but the bias it is `d` itself, which is also the residual's gradient; else `memory` holds it.
/// Frees `kept`.
ConstTensor Block::result_gradient(const BlockPass& pass, const Tensor& d, const Around& of, OwnedTensor& kept,
                                   OwnedTensor& memory) const {
  ComputeStream& compute = rank_.compute();
  const double multiplier = config_.residual_multiplier;
  Tensor of_result = d;
  if (drops(pass) || multiplier != 1 || of.behind.exists())
    of_result = memory = like(d, d.dtype(), Category::workspace, "gradient of a sublayer's result");
  ConstTensor so_far = d;
  if (drops(pass)) {
    dropout(pass, of_result, so_far, of.layer, of.site);
    so_far = of_result;
  }
  if (multiplier != 1) {
    compute.multiply(of_result, so_far, multiplier);
    so_far = of_result;
  }
  if (of.behind.exists()) norm_backward(compute, config_, of_result, so_far, kept.view(), of.behind, Write::replace);
  kept.reset();
  of.bias.add_gradient(compute, of_result);
  return of_result;
}

/// Adds to the residual's gradient `d` that of a sublayer's input, `dx`. `x`: the residual that the sublayer took.
void Block::add_input_gradient(const Tensor& d, const Tensor& dx, const Tensor& x, const NormWeights& norm) const {
  if (norm.exists()) norm_backward(rank_.compute(), config_, d, dx, x, norm, Write::add);
  else rank_.compute().add(d, d, dx);
}

OwnedTensor Block::residual(const Tensor& x, const Tensor& y, Category category, std::string_view what) const {
  OwnedTensor sum = like(x, dtype_, category, what);
  if (config_.residual_multiplier == 1) rank_.compute().add(sum, x, y);
  else rank_.compute().add_multiple(sum, x, y, config_.residual_multiplier);
  return sum;
}

/// Allocates the tensors of `saved` that are kept.
void Block::make_room(const TokenLayout& tokens, std::size_t layer, Keep keep, BlockSaved& saved) const {
  const SavedSizes sizes = strategy_.saved_sizes(layer, tokens);
  const auto room = [&](std::span<const std::size_t> of, std::string_view what) {
    return rank_.tensor(Category::activations, dtype_, of, what);
  };
  const LayerSpec& spec = config_.layer(layer);
  const auto room_for_kv = [&] {
    if (!spec.projects_keys() || saved.attention.k.exists()) return;
    const Category category = keep == Keep::nothing ? Category::workspace : Category::activations;
    saved.attention.k = rank_.tensor(category, dtype_, sizes.kv, "saved keys");
    saved.attention.v = rank_.tensor(category, dtype_, sizes.kv, "saved values");
  };
  if (keep == Keep::kv || spec.lends) room_for_kv();
  if (keep != Keep::backward || recompute_ == Recompute::full) return;
  saved.attention.o = room(sizes.o, "saved attention output");
  saved.attention.lse = LogSumExps(rank_, Category::activations, kernels::summed_in(dtype_), sizes.lse, "saved log-sum-exp");
  if (recompute_ == Recompute::selective) return;
  saved.attention.q = room(sizes.q, "saved queries");
  room_for_kv();
  if (spec.norms_queries_and_keys()) {
    saved.attention.query_product = room(sizes.query_product, "saved queries before their norm");
    if (spec.projects_keys()) saved.attention.key_product = room(sizes.key_product, "saved keys before their norm");
  }
  if (spec.norms_own_values()) saved.attention.value_product = room(sizes.key_product, "saved values before their norm");
  saved.mlp.gate = room(sizes.gate, "saved gate");
  if (config_.gated_mlp()) saved.mlp.up = room(sizes.gate, "saved up");
}

/// Returns "layer 1, attention, forward".
std::string Block::stage(std::size_t layer, std::string_view sublayer, std::string_view direction) {
  return fmt::format("layer {}, {}, {}", layer, sublayer, direction);
}

OwnedTensor Block::forward(const BlockPass& pass, std::size_t layer, OwnedTensor x, const BlockVectors& vectors, Keep keep,
                           BlockSaved& saved) const {
  const Category kept = keep == Keep::backward ? Category::activations : Category::workspace;
  const bool side_by_side = config_.layer(layer).side_by_side();
  const Around attention = around_attention(layer, vectors);
  const Around mlp = around_mlp(layer, vectors);
  make_room(pass.tokens, layer, keep, saved);
  saved.x1 = std::move(x);
  rank_.enter_stage(PassPart::attention, false, [&] { return stage(layer, "attention", "forward"); });
  rank_.look(Watched::input, saved.x1.view());
  {
    OwnedTensor y = room_for_result(saved.x1, attention, keep, "attention result");
    drop_attention(pass, layer);
    pass.sublayers.attention_forward(layer, y, input(saved.x1, attention.before).x, saved.attention);
    rank_.look(Watched::result, y.view());
    end_sublayer(pass, y, attention, keep, saved.attention_result);
    saved.x2 = residual(saved.x1, y, side_by_side ? Category::workspace : kept, "residual before the MLP");
  }
  if (keep != Keep::backward && !side_by_side) saved.x1.reset();
  OwnedTensor x3;
  rank_.enter_stage(PassPart::mlp, false, [&] { return stage(layer, "MLP", "forward"); });
  const Tensor of_mlp = side_by_side ? saved.x1 : saved.x2;
  rank_.look(Watched::input, of_mlp);
  {
    OwnedTensor y = room_for_result(of_mlp, mlp, keep, "MLP result");
    pass.sublayers.mlp_forward(layer, y, input(of_mlp, mlp.before).x, saved.mlp);
    rank_.look(Watched::result, y.view());
    end_sublayer(pass, y, mlp, keep, saved.mlp_result);
    x3 = residual(saved.x2, y, kept, "residual after the block");
  }
  if (config_.layer(layer).takes_input) {
    saved.x3 = std::move(x3);
    x3 = like(saved.x3, dtype_, kept, "residual after the layer's input");
    pass.inputs->add(layer, x3->merged(0), saved.x3->merged(0), vectors.input);
    if (keep != Keep::backward) saved.x3.reset();
  }
  if (config_.layer(layer).scales_output) rank_.compute().multiply(x3, x3.view(), vectors.output_scale);
  if (keep != Keep::backward || side_by_side) saved.x2.reset();
  if (keep != Keep::backward) saved.x1.reset();
  return x3;
}

void Block::backward(const BlockPass& pass, std::size_t layer, const Tensor& d, const BlockVectors& vectors,
                     BlockSaved& saved) const {
  const bool side_by_side = config_.layer(layer).side_by_side();
  const Around attention = around_attention(layer, vectors);
  const Around mlp = around_mlp(layer, vectors);
  OwnedTensor beside;  // gradient of the MLP's input where it is that of the attention
  if (config_.layer(layer).scales_output) rank_.compute().multiply(d, d, vectors.output_scale);
  if (config_.layer(layer).takes_input) {
    pass.inputs->add_backward(layer, d.merged(0), saved.x3->merged(0), vectors.input);
    saved.x3.reset();
  }
  pass.sublayers.begin_block_backward(layer, saved.attention);
  rank_.enter_stage(PassPart::mlp, true, [&] { return stage(layer, "MLP", "backward"); });
  rank_.look(Watched::result_gradient, d);
  {
    const Tensor x = side_by_side ? saved.x1 : saved.x2;
    OwnedTensor dx = like(d, d.dtype(), Category::workspace, "gradient of the MLP's input");
    OwnedTensor memory;
    const ConstTensor dy = result_gradient(pass, d, mlp, saved.mlp_result, memory);
    pass.sublayers.mlp_backward(layer, {.dx = dx, .dy = dy, .x = input(x, mlp.before).x}, saved.mlp);
    rank_.look(Watched::input_gradient, dx.view());
    if (side_by_side) beside = std::move(dx);
    else add_input_gradient(d, dx, x, mlp.before);
  }
  saved.mlp = {};
  saved.x2.reset();
  rank_.enter_stage(PassPart::attention, true, [&] { return stage(layer, "attention", "backward"); });
  rank_.look(Watched::result_gradient, d);
  const OwnedTensor dx = like(d, d.dtype(), Category::workspace, "gradient of the attention's input");
  OwnedTensor memory;
  const ConstTensor dy = result_gradient(pass, d, attention, saved.attention_result, memory);
  drop_attention(pass, layer);
  pass.sublayers.attention_backward(layer, {.dx = dx, .dy = dy, .x = input(saved.x1, attention.before).x}, saved.attention);
  rank_.look(Watched::input_gradient, dx.view());
  if (side_by_side) rank_.compute().add(dx, dx.view(), beside.view());
  add_input_gradient(d, dx, saved.x1, attention.before);
  saved = {};
}

}  // namespace tsprun::detail
