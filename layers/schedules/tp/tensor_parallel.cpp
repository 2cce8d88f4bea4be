// Wraps the inner strategy's sublayers in exchanges over the tensor axis, and sums copies of K/V gradients.
#include "layers/schedules/tp/tensor_parallel.h"

#include "core/kernels/check.h"
#include "layers/parameters/place.h"
#include "layers/schedules/all_reduce.h"
#include "layers/schedules/packs.h"

#include <numeric>
#include <optional>
#include <utility>

namespace tsprun::detail {

namespace {

// A stream of its own, because K and V may be travelling at the same time.
const CallOptions kTensorAxis{.stream = Stream::control, .purpose = Purpose::activations};

}  // namespace

TensorParallel::TensorParallel(Rank& rank, Communicator& tensor, TensorExchange exchange, const StrategyOptions& options,
                               const Placement& placement, std::unique_ptr<Strategy> inner)
    : rank_(rank),
      tensor_(tensor),
      exchange_(exchange),
      config_(options.config),
      dtype_(options.dtype),
      sums_(kernels::summed_in(options.dtype)),
      inner_(std::move(inner)),
      copied_rows_(config_, [&](std::size_t layer) { return find_copies(config_.layer(layer), placement.kv_heads(layer)); }) {}

// --- parameters --------------------------------------------------------------------------------------------------------------

/// Makes the groups of ranks that share this rank's K/V heads of such layers, of which it has the heads `held`, and returns where
/// their rows are in an attention pack. Ranks go through heads in ascending order, so that ranks with several groups sum them in
/// the same order.
std::vector<TensorParallel::CopiedRows> TensorParallel::find_copies(const LayerSpec& layer, const HeadRange& held) {
  const std::size_t d = config_.head_dim_of(layer);
  std::vector<CopiedRows> rows;
  if (!layer.projects_keys()) return rows;
  for (const CopiedHead& shared : copied_heads(config_, layer, {tensor_.rank(), tensor_.size()})) {
    std::vector<int> readers(static_cast<std::size_t>(shared.last - shared.owner + 1));
    std::iota(readers.begin(), readers.end(), shared.owner);
    copies_.push_back(tensor_.subgroup(readers));
    if (shared.head < held.first || shared.head >= held.end()) continue;
    for (const std::size_t before : {std::size_t{0}, held.count}) {  // of W_K's rows, of W_V's
      if (before > 0 && !layer.projects_values()) continue;
      rows.push_back({.first = (before + shared.head - held.first) * d, .count = d, .group = &copies_.back()});
    }
  }
  return rows;
}

// --- a pass --------------------------------------------------------------------------------------------------------------------

/// Methods are documented in StrategyPass.
class TensorParallel::Pass final : public StrategyPass {
 public:
  Pass(const TensorParallel& all, const PassInputs& of)
      : StrategyPass(of),
        rank_(all.rank_),
        tensor_(all.tensor_),
        exchange_(all.exchange_),
        config_(all.config_),
        dtype_(all.dtype_),
        sums_(all.sums_),
        copied_rows_(all.copied_rows_),
        inner_(all.inner_->begin(of_slice(of))) {
    inner_->on_gradients([this](std::size_t pack) {
      if (!store().is_cut(pack)) sum_copies(pack, store().gradients(pack));
      tell_gradients(pack);
    });
  }

  void drop_attention(const kernels::AttentionDropout& of) override { inner_->drop_attention(of); }
  void attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) override;
  void mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) override;
  void begin_backward() override { inner_->begin_backward(); }
  void begin_block_backward(std::size_t layer, const AttentionSaved& attention) override {
    inner_->begin_block_backward(layer, attention);
  }
  void mlp_backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved) override;
  void attention_backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved) override;
  void end() override;

 private:
  /// A sum over the tensor axis that is under way: from terms of all tokens to this rank's rows of the sum.
  struct Sum {
    Tensor result;        // where the sum goes, in the type of sums
    OwnedTensor terms;    // in the model's dtype; none if the result is summed in place
    OwnedTensor arrived;  // rows in the model's dtype; none if that is the type of sums
    Work work;
  };

  bool slices_tokens() const { return exchange_ == TensorExchange::sequence; }
  bool narrow() const { return dtype_ != sums_; }
  OwnedTensor all_tokens(DType of, std::string_view what) const;
  Transfer gather(const ConstTensor& rows) const;
  Sum begin_sum(const Tensor& terms, const Tensor& result) const;
  void finish(const Sum& sum) const;
  template <class Body>
  void forward(const Tensor& y, const ConstTensor& x, Body&& sublayer);
  template <class Body>
  void backward(const SublayerBackward& of, Body&& sublayer);
  PassInputs of_slice(PassInputs of) {
    of.heads = {.ranks = &tensor_, .at = {tensor_.rank(), tensor_.size()}};
    of.before_scatter = [this](std::size_t pack, const Tensor& gradients) { sum_copies(pack, gradients); };
    return of;
  }
  void sum_copies(std::size_t pack, const Tensor& gradients);

  Rank& rank_;
  Communicator& tensor_;
  const TensorExchange exchange_;
  const ModelConfig& config_;
  const DType dtype_;
  const DType sums_;
  const ByLayer<std::vector<CopiedRows>>& copied_rows_;
  const std::unique_ptr<StrategyPass> inner_;
  std::vector<Work> summing_copies_;
};

std::unique_ptr<StrategyPass> TensorParallel::begin(const PassInputs& of) const { return std::make_unique<Pass>(*this, of); }

void TensorParallel::Pass::sum_copies(std::size_t pack, const Tensor& gradients) {
  if (!is_attention_pack(pack)) return;
  for (const auto& [first, count, group] : copied_rows_[layer_of(pack)]) {
    summing_copies_.push_back(
        post_sum(*group, gradients.slice(0, first, count), {.stream = Stream::gradients, .purpose = Purpose::gradients}));
  }
}

// --- exchanges ---------------------------------------------------------------------------------------------------------------

OwnedTensor TensorParallel::Pass::all_tokens(DType of, std::string_view what) const {
  return rank_.tensor(Category::communication, of, {tokens().batch(), tokens().local(), config_.hidden}, what);
}

/// Begins to gather the slices' rows, in the model's dtype, into those of all tokens.
Transfer TensorParallel::Pass::gather(const ConstTensor& rows) const {
  Transfer transfer{.tensor = all_tokens(dtype_, "gathered tokens"), .work = {}};
  transfer.work = tensor_.post_all_gather_v(buffer_of(rows), buffer_of(transfer.tensor.view()),
                                            tokens().slices().counts(tensor_.size(), config_.hidden), kTensorAxis);
  return transfer;
}

/// Begins to sum `terms` of all tokens, in the type of sums, into `result`, which is the same tensor with TensorExchange::plain.
TensorParallel::Pass::Sum TensorParallel::Pass::begin_sum(const Tensor& terms, const Tensor& result) const {
  Sum sum{.result = result, .terms = {}, .arrived = {}, .work = {}};
  Tensor travelling = terms;
  Tensor arriving = result;
  if (narrow()) {
    sum.terms = all_tokens(dtype_, "terms of a sum over the tensor axis");
    rank_.compute().convert(sum.terms->merged(0), terms.merged(0));
    travelling = sum.terms;
    if (slices_tokens()) {
      sum.arrived = tokens().residual(rank_, Category::communication, dtype_, config_.hidden, "sum over the tensor axis");
      arriving = sum.arrived;
    }
  }
  if (slices_tokens()) {
    sum.work =
        tensor_.post_reduce_scatter_v(buffer_of(ConstTensor(travelling)), buffer_of(arriving),
                                      tokens().slices().counts(tensor_.size(), config_.hidden), Reduction::sum, kTensorAxis);
  } else {
    sum.work = post_sum(tensor_, travelling, kTensorAxis);
  }
  return sum;
}

void TensorParallel::Pass::finish(const Sum& sum) const {
  rank_.wait(sum.work);
  if (!narrow()) return;
  const Tensor from = slices_tokens() ? sum.arrived : sum.terms;
  rank_.compute().convert(sum.result.merged(0), from.merged(0));
}

// --- forward -------------------------------------------------------------------------------------------------------------------

template <class Body>
void TensorParallel::Pass::forward(const Tensor& y, const ConstTensor& x, Body&& sublayer) {
  if (!slices_tokens()) {
    sublayer(y, x);
    finish(begin_sum(y, y));
    return;
  }
  Transfer X = gather(x);
  const OwnedTensor Y = all_tokens(sums_, "terms of all tokens");
  rank_.wait(X.work);
  sublayer(Y.view(), ConstTensor(X.tensor));
  X.tensor.reset();
  finish(begin_sum(Y, y));
}

void TensorParallel::Pass::attention_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, AttentionSaved& saved) {
  forward(y, x, [&](const Tensor& Y, const ConstTensor& X) { inner_->attention_forward(layer, Y, X, saved); });
}

void TensorParallel::Pass::mlp_forward(std::size_t layer, const Tensor& y, const ConstTensor& x, MlpSaved& saved) {
  forward(y, x, [&](const Tensor& Y, const ConstTensor& X) { inner_->mlp_forward(layer, Y, X, saved); });
}

// --- backward ------------------------------------------------------------------------------------------------------------------

template <class Body>
void TensorParallel::Pass::backward(const SublayerBackward& of, Body&& sublayer) {
  // The sum of the slices' dx. It travels while the gradients of the weights are computed, if the inner strategy says when it
  // can.
  std::optional<Sum> sum;
  OwnedTensor memory;
  Tensor dX = of.dx;  // this slice's term
  const auto begin = [&] { sum = begin_sum(dX, of.dx); };
  if (!slices_tokens()) {
    sublayer({.dx = dX, .dy = of.dy, .x = of.x, .dx_complete = begin});
  } else {
    OwnedTensor narrow_dy;
    if (narrow()) {
      narrow_dy = tokens().residual(rank_, Category::communication, dtype_, config_.hidden, "gradient that travels");
      rank_.compute().convert(narrow_dy, of.dy);
    }
    Transfer dY = gather(narrow() ? ConstTensor(narrow_dy) : of.dy);
    const Transfer X = gather(of.x);
    dX = memory = all_tokens(sums_, "terms of all tokens");
    rank_.wait(dY.work);
    if (narrow()) {
      OwnedTensor wide = all_tokens(sums_, "gathered gradient");
      rank_.compute().convert(wide->merged(0), dY.tensor->merged(0));
      dY.tensor = std::move(wide);
    }
    rank_.wait(X.work);
    sublayer({.dx = dX, .dy = dY.tensor, .x = X.tensor, .dx_complete = begin});
  }
  if (!sum) begin();
  finish(*sum);
}

void TensorParallel::Pass::mlp_backward(std::size_t layer, const SublayerBackward& of, const MlpSaved& saved) {
  backward(of, [&](const SublayerBackward& slice) { inner_->mlp_backward(layer, slice, saved); });
}

void TensorParallel::Pass::attention_backward(std::size_t layer, const SublayerBackward& of, const AttentionSaved& saved) {
  backward(of, [&](const SublayerBackward& slice) { inner_->attention_backward(layer, slice, saved); });
}

void TensorParallel::Pass::end() {
  inner_->end();
  for (const Work& work : summing_copies_) rank_.wait(work);
  summing_copies_.clear();
}

}  // namespace tsprun::detail
