// The head with gathered activations: every rank computes the logits of its own vocabulary rows for all tokens, so weights stay
// where they are and their gradients need no exchange. Moves fewer bytes for few tokens and a large vocabulary.
#include "layers/schedules/vocabulary.h"

#include <algorithm>

namespace tsprun::detail {

using kernels::Write;

namespace {

const CallOptions kHead{.stream = Stream::kv, .purpose = Purpose::head};

/// Returns the number of elements of each rank's tokens, `width` per token.
std::vector<std::size_t> token_counts(const TokenLayout& tokens, int ranks, std::size_t width) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(tokens.held_rows(r) * width);
  return counts;
}

}  // namespace

double ExchangedVocabulary::head_gathered(const ConstTensor& x, const Tensor& lse, const TokenLayout& tokens,
                                          const LogitsSink* logits, bool keep) {
  ComputeStream& compute = rank_.compute();
  const std::size_t all = tokens.batch() * tokens.sequence();
  const DType sums = lse.dtype();
  gathered_x_ = rank_.tensor(Category::communication, x.dtype(), {all, hidden()}, "gathered input of the head");
  rank_.wait(axis_.post_all_gather_v(buffer_of(x), buffer_of(gathered_x_.view()), token_counts(tokens, size(), hidden()), kHead));

  const auto vector = [&](std::size_t count, std::string_view what) {
    return rank_.tensor(Category::communication, sums, {count}, what);
  };
  const OwnedTensor maximum = vector(all, "maxima of logits");
  const OwnedTensor sum = vector(all, "sums of exponentials");
  const OwnedTensor label_logit = vector(all, "labels' logits");
  compute.cross_entropy_begin(maximum, sum, label_logit);
  shard_of(gathered_x_, weights_.head, me(), sums).add_to_loss(maximum, sum, label_logit, logits, row_numbers_);
  // Each rank's log-sum-exp over its rows goes to the ranks of the tokens and is merged there; the result goes back to all.
  const OwnedTensor& part_lse = maximum;
  compute.cross_entropy_finish(part_lse, maximum, sum);
  const std::size_t own = x.size(0);
  const OwnedTensor parts =
      rank_.tensor(Category::communication, sums, {static_cast<std::size_t>(size()), own}, "log-sum-exp parts");
  const std::vector<std::size_t> counts = token_counts(tokens, size(), 1);
  const std::vector<std::size_t> mine(static_cast<std::size_t>(size()), own);
  rank_.wait(axis_.post_all_to_all_v(buffer_of(ConstTensor(part_lse.view())), counts, buffer_of(parts.view()), mine, kHead));
  std::vector<ConstTensor> in_order;
  for (std::size_t r = 0; r < mine.size(); ++r) in_order.push_back(parts->select(0, r));
  compute.merge_log_sum_exp(lse, in_order);
  gathered_lse_ = vector(all, "log-sum-exp");
  rank_.wait(axis_.post_all_gather_v(buffer_of(ConstTensor(lse)), buffer_of(gathered_lse_.view()), counts, kHead));

  // Σ log-sum-exp of this rank's tokens, minus the logits of the labels among this rank's ids.
  std::size_t before = 0;
  for (int r = 0; r < me(); ++r) before += counts[static_cast<std::size_t>(r)];
  const OwnedTensor& zeros = sum;
  compute.fill_zero(zeros);
  const double sum_of_lse = compute.cross_entropy_loss(lse, zeros->slice(0, 0, own), labels_.subspan(before, own));
  const double less = compute.cross_entropy_loss(zeros, label_logit, labels_);
  if (!keep) {
    gathered_x_.reset();
    gathered_lse_.reset();
  }
  return sum_of_lse + less;
}

void ExchangedVocabulary::head_backward_gathered(const Tensor& dx, const TokenLayout& tokens, double weight) {
  const std::size_t all = gathered_x_->size(0);
  const DType sums = gathered_lse_->dtype();
  const OwnedTensor dx_all = rank_.tensor(Category::communication, sums, {all, hidden()}, "gradient of the head's input");
  shard_of(gathered_x_, weights_.head, me(), sums)
      .backward(dx_all, weights_.head_gradient, gathered_lse_, weight, Write::replace);
  gathered_x_.reset();
  gathered_lse_.reset();
  rank_.wait(axis_.post_reduce_scatter_v(buffer_of(ConstTensor(dx_all.view())), buffer_of(dx),
                                         token_counts(tokens, size(), hidden()), Reduction::sum, kHead));
}

}  // namespace tsprun::detail
