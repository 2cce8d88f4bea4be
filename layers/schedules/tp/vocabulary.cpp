// Looks up and scores a rank's own ids, and merges log-sum-exps over the tensor axis.
#include "layers/schedules/tp/vocabulary.h"

#include "core/kernels/check.h"
#include "layers/schedules/all_reduce.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tsprun::detail {

using kernels::Write;

TensorVocabulary::TensorVocabulary(Rank& rank, Communicator& tensor, Communicator& sequence, const Chunks& rows,
                                   const Weights& weights, const MicroBatch& of)
    : rank_(rank), tensor_(tensor), sequence_(sequence), rows_(rows), weights_(weights), micro_batch_(of) {}

/// Replaces x by its sum over the tensor axis; elements travel as `travelling`.
void TensorVocabulary::sum_over_tensor(const Tensor& x, DType travelling, Purpose purpose) {
  const CallOptions options{.stream = Stream::kv, .purpose = purpose};
  if (x.dtype() == travelling) {
    rank_.wait(post_sum(tensor_, x, options));
    return;
  }
  const OwnedTensor terms =
      rank_.tensor(Category::communication, travelling, {x.size(0), x.size(1)}, "terms of a sum over the tensor axis");
  rank_.compute().convert(terms, x);
  rank_.wait(post_sum(tensor_, terms, options));
  rank_.compute().convert(x, terms);
}

void TensorVocabulary::sum_over_sequence(const Tensor& gradient, Purpose purpose) {
  if (sequence_.size() == 1 || gradient.elements() == 0 || !micro_batch_.last()) return;
  summing_head_ = post_sum(sequence_, gradient, {.stream = Stream::gradients, .purpose = purpose});
}

// --- embedding ---------------------------------------------------------------------------------------------------------------

void TensorVocabulary::begin(const TokenLayout& tokens, Category kept) {
  const std::size_t count = tokens.rows();
  label_memory_ = rank_.list_memory(kept, count * sizeof(std::int64_t), "labels");
  labels_ = {reinterpret_cast<std::int64_t*>(label_memory_.bytes().data()), count};
}

void TensorVocabulary::end() {
  rank_.wait(summing_head_);
  summing_head_ = {};
}

void TensorVocabulary::embed(const Tensor& x, const TokenLayout& tokens, std::span<const Token> ids, Category kept) {
  begin(tokens, kept);
  const std::size_t count = tokens.rows();
  const std::size_t first = rows_.offset(tensor_.rank());
  const bool supposed = rank_.is_phantom() && ids.size() <= 1;
  if (supposed) {
    const std::size_t here = rows_.count(tensor_.rank());
    const bool has_only = !ids.empty() && static_cast<std::size_t>(ids[0]) - first < here;
    positions_.resize(ids.empty() ? count * here / rows_.total() : has_only ? count : 0);
    rows_here_ = positions_;
  }
  const std::vector<Token> own = supposed ? std::vector<Token>() : tokens.take(tokens.holder(), ids);
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto id = static_cast<std::size_t>(own[i]);
    if (own[i] < 0 || id >= rows_.total()) {
      throw Error(Cause::refused, fmt::format("token id {}: the vocabulary has {} ids", own[i], rows_.total()));
    }
    if (id < first || id >= first + rows_.count(tensor_.rank())) continue;
    positions_.push_back(static_cast<std::uint32_t>(i));
    rows_here_.push_back(static_cast<std::uint32_t>(id - first));
  }
  // Rows are added to zeros in the type of sums, which is as exact as a copy.
  const DType sums = kernels::summed_in(x.dtype());
  const OwnedTensor values = rank_.tensor(Category::workspace, sums, {rows_here_.size(), x.size(1)}, "embedding rows");
  rank_.compute().gather_rows(values, weights_.embedding, rows_here_);
  OwnedTensor wide;
  Tensor into = x;
  if (sums != x.dtype()) into = wide = rank_.tensor(Category::workspace, sums, {count, x.size(1)}, "embedded tokens");
  rank_.compute().fill_zero(into);
  rank_.compute().scatter_add_rows(into, values, positions_);
  if (wide.exists()) rank_.compute().convert(x, into);
  sum_over_tensor(x, x.dtype(), Purpose::embedding);
}

void TensorVocabulary::embed_backward(const ConstTensor& dx) {
  const OwnedTensor values =
      rank_.tensor(Category::workspace, dx.dtype(), {positions_.size(), dx.size(1)}, "gradients of embedding rows");
  rank_.compute().gather_rows(values, dx, positions_);
  if (!weights_.tied && micro_batch_.first()) rank_.compute().fill_zero(weights_.embedding_gradient);
  rank_.compute().scatter_add_rows(weights_.embedding_gradient, values, rows_here_);
  end();
  sum_over_sequence(weights_.embedding_gradient, Purpose::embedding);
  end();
}

// --- head and loss -----------------------------------------------------------------------------------------------------------

double TensorVocabulary::head(const ConstTensor& x, const Tensor& lse, const TokenLayout& tokens,
                              std::span<const std::int64_t> labels, const LogitsSink* logits, std::optional<double>) {
  if (!labels.empty()) std::ranges::copy(tokens.take(tokens.holder(), labels), labels_.begin());
  if (logits != nullptr) {
    std::vector<std::size_t> numbers(tokens.batch() * tokens.sequence());
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    row_numbers_ = tokens.take(tokens.holder(), std::span<const std::size_t>(numbers));
  }
  const std::vector<std::size_t> counts = Chunks::balanced(tensor_.size(), x.size(0)).counts(tensor_.size());
  return shard(x, lse.dtype()).merged_loss(tensor_, counts, lse, logits, row_numbers_);
}

OwnedTensor TensorVocabulary::head_backward(const ConstTensor& x, const ConstTensor& lse, const TokenLayout&, double weight) {
  OwnedTensor dx = head_input_gradient(rank_, x, lse.dtype());
  shard(x, lse.dtype()).backward(dx, weights_.head_gradient, lse, weight, Write::replace, micro_batch_.write());
  if (!weights_.tied) sum_over_sequence(weights_.head_gradient, Purpose::head);
  sum_over_tensor(dx, x.dtype(), Purpose::head);
  return dx;
}

}  // namespace tsprun::detail
