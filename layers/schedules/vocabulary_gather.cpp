// The head with gathered activations: every rank computes the logits of its own vocabulary rows for all tokens, so weights stay
// where they are and their gradients need no exchange. Moves fewer bytes for few tokens and a large vocabulary.
#include "layers/schedules/vocabulary.h"

#include <numeric>

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
  const std::size_t all = tokens.batch() * tokens.sequence();
  const std::size_t h = x.size(1);
  gathered_x_ = rank_.tensor(Category::communication, x.dtype(), {all, h}, "gathered input of the head");
  rank_.wait(axis_.post_all_gather_v(buffer_of(x), buffer_of(gathered_x_.view()), token_counts(tokens, size(), h), kHead));

  gathered_lse_ = rank_.tensor(Category::communication, lse.dtype(), {all}, "log-sum-exp");
  const std::vector<std::size_t> counts = token_counts(tokens, size(), 1);
  const double loss =
      shard_of(gathered_x_, weights_.head, me(), lse.dtype()).merged_loss(axis_, counts, gathered_lse_, logits, row_numbers_);
  const std::size_t before = std::accumulate(counts.begin(), counts.begin() + me(), std::size_t{0});
  rank_.compute().convert(lse, gathered_lse_->slice(0, before, x.size(0)));
  if (!keep) {
    gathered_x_.reset();
    gathered_lse_.reset();
  }
  return loss;
}

OwnedTensor ExchangedVocabulary::head_backward_gathered(const ConstTensor& x, const TokenLayout& tokens, double weight) {
  const std::size_t all = gathered_x_->size(0);
  const std::size_t h = x.size(1);
  const DType sums = gathered_lse_->dtype();
  OwnedTensor dx = head_input_gradient(rank_, x, sums);
  const OwnedTensor dx_all = rank_.tensor(Category::communication, sums, {all, h}, "gradient of the head's input");
  shard_of(gathered_x_, weights_.head, me(), sums)
      .backward(dx_all, weights_.head_gradient, gathered_lse_, weight, Write::replace, micro_batch_.write());
  gathered_x_.reset();
  gathered_lse_.reset();
  rank_.wait(axis_.post_reduce_scatter_v(buffer_of(ConstTensor(dx_all.view())), buffer_of(dx.view()),
                                         token_counts(tokens, size(), h), Reduction::sum, kHead));
  return dx;
}

}  // namespace tsprun::detail
