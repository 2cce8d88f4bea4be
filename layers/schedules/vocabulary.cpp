// The embedding's exchange, and the head with rotating weights. The head with gathered activations is in vocabulary_gather.cpp.
#include "layers/schedules/vocabulary.h"

#include "layers/schedules/look_ahead.h"
#include "layers/schedules/ring.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tsprun::detail {

using kernels::Write;

namespace {

const CallOptions kMergedHead{.stream = Stream::kv, .purpose = Purpose::head};

std::vector<std::size_t> elements_of(const std::vector<std::vector<std::uint32_t>>& rows, std::size_t width) {
  std::vector<std::size_t> elements;
  for (const auto& list : rows) elements.push_back(list.size() * width);
  return elements;
}

std::vector<std::size_t> times(const std::vector<std::size_t>& rows, std::size_t width) {
  std::vector<std::size_t> elements;
  for (const std::size_t count : rows) elements.push_back(count * width);
  return elements;
}

int owner_of(const Chunks& rows, int ranks, std::size_t id) {
  int owner = 0;
  while (owner + 1 < ranks && id >= rows.offset(owner) + rows.count(owner)) ++owner;
  return owner;
}

}  // namespace

ExchangedVocabulary::ExchangedVocabulary(Rank& rank, Communicator& axis, const Chunks& rows, HeadPlan plan,
                                         const Weights& weights, const MicroBatch& of)
    : rank_(rank),
      axis_(axis),
      rows_(rows),
      plan_(size() == 1 ? HeadPlan::rotate_weights : plan),
      weights_(weights),
      micro_batch_(of) {}

// --- embedding ---------------------------------------------------------------------------------------------------------------

void ExchangedVocabulary::begin(const TokenLayout& tokens, Category kept) {
  token_memory_ = rank_.list_memory(kept, tokens.held_rows() * static_cast<std::size_t>(kTokenBytes), "ids and labels");
  std::byte* const memory = token_memory_.bytes().data();
  own_labels_ = {reinterpret_cast<std::int64_t*>(memory), tokens.held_rows()};
  order_ = {reinterpret_cast<std::uint32_t*>(memory + own_labels_.size_bytes()), tokens.held_rows()};
}

void ExchangedVocabulary::plan_rows(const TokenLayout& tokens, std::span<const Token> ids) {
  const auto ranks = static_cast<std::size_t>(size());
  wanted_.assign(ranks, {});
  needed_.assign(ranks, 0);
  if (rank_.is_phantom() && ids.size() <= 1) suppose_rows(tokens, ids);
  else find_rows(tokens, ids);
  rows_for_others_ = 0;
  for (const auto& list : wanted_) rows_for_others_ += list.size();
}

void ExchangedVocabulary::suppose_rows(const TokenLayout& tokens, std::span<const Token> ids) {
  std::iota(order_.begin(), order_.end(), std::uint32_t{0});
  const int only = ids.empty() ? -1 : owner_of(rows_, size(), static_cast<std::size_t>(ids[0]));
  const auto share = [&](int holder, int owner) {
    const std::size_t held = tokens.held_rows(holder);
    if (only >= 0) return owner == only ? held : 0;
    const std::size_t first = rows_.offset(owner);
    return held * (first + rows_.count(owner)) / rows_.total() - held * first / rows_.total();
  };
  for (int q = 0; q < size(); ++q) {
    wanted_[static_cast<std::size_t>(q)].resize(share(q, me()));
    needed_[static_cast<std::size_t>(q)] = share(me(), q);
  }
}

void ExchangedVocabulary::find_rows(const TokenLayout& tokens, std::span<const Token> ids) {
  std::vector<int> owners;  // owner of each of this rank's tokens
  for (int q = 0; q < size(); ++q) {
    for (const Token token : tokens.take(q, ids)) {
      const auto id = static_cast<std::size_t>(token);
      if (token < 0 || id >= rows_.total()) {
        throw Error(Cause::refused, fmt::format("token id {}: the vocabulary has {} ids", token, rows_.total()));
      }
      const int owner = owner_of(rows_, size(), id);
      if (owner == me()) wanted_[static_cast<std::size_t>(q)].push_back(static_cast<std::uint32_t>(id - rows_.offset(me())));
      if (q == me()) {
        owners.push_back(owner);
        ++needed_[static_cast<std::size_t>(owner)];
      }
    }
  }
  std::size_t next = 0;
  for (int owner = 0; owner < size(); ++owner) {
    for (std::size_t t = 0; t < owners.size(); ++t) {
      if (owners[t] == owner) order_[next++] = static_cast<std::uint32_t>(t);
    }
  }
}

void ExchangedVocabulary::embed(const Tensor& x, const TokenLayout& tokens, std::span<const Token> ids, Category kept) {
  begin(tokens, kept);
  plan_rows(tokens, ids);
  const std::size_t h = x.size(1);
  const OwnedTensor out = rank_.tensor(Category::communication, x.dtype(), {rows_for_others_, h}, "embedding rows for others");
  const OwnedTensor in = rank_.tensor(Category::communication, x.dtype(), {x.size(0), h}, "embedding rows from others");
  std::size_t row = 0;
  for (const auto& rows : wanted_) {
    rank_.compute().gather_rows(out->slice(0, row, rows.size()), weights_.embedding, rows);
    row += rows.size();
  }
  rank_.wait(axis_.post_all_to_all_v(buffer_of(ConstTensor(out.view())), elements_of(wanted_, h), buffer_of(in.view()),
                                     times(needed_, h), {.stream = Stream::kv, .purpose = Purpose::embedding}));
  // The i-th row that arrived belongs to token order_[i].
  std::vector<std::uint32_t> where(x.size(0));
  for (std::size_t i = 0; i < order_.size(); ++i) where[order_[i]] = static_cast<std::uint32_t>(i);
  rank_.compute().gather_rows(x, in.view(), where);
}

void ExchangedVocabulary::embed_backward(const ConstTensor& dx) {
  const std::size_t h = dx.size(1);
  const OwnedTensor out =
      rank_.tensor(Category::communication, dx.dtype(), {dx.size(0), h}, "gradients of others' embedding rows");
  const OwnedTensor in = rank_.tensor(Category::communication, dx.dtype(), {rows_for_others_, h}, "gradients of embedding rows");
  rank_.compute().gather_rows(out, dx, order_);
  rank_.wait(axis_.post_all_to_all_v(buffer_of(ConstTensor(out.view())), times(needed_, h), buffer_of(in.view()),
                                     elements_of(wanted_, h), {.stream = Stream::kv, .purpose = Purpose::embedding}));
  if (!weights_.tied && micro_batch_.first()) rank_.compute().fill_zero(weights_.embedding_gradient);
  // In canonical order: the next rank's rows first, this rank's own last.
  for (int i = 1; i <= size(); ++i) {
    const auto q = static_cast<std::size_t>((me() + i) % size());
    std::size_t first = 0;
    for (std::size_t r = 0; r < q; ++r) first += wanted_[r].size();
    rank_.compute().scatter_add_rows(weights_.embedding_gradient, in->slice(0, first, wanted_[q].size()), wanted_[q]);
  }
}

// --- head and loss -----------------------------------------------------------------------------------------------------------

OwnedTensor head_input_gradient(Rank& rank, const ConstTensor& x, DType sums) {
  return rank.tensor(Category::workspace, sums, {x.size(0), x.size(1)}, "gradient of the head's input");
}

std::size_t logit_tile_rows(std::size_t bytes, std::size_t ids, DType sums) {
  constexpr std::size_t kFewest = 64;
  return std::max(kFewest, bytes / (std::max<std::size_t>(ids, 1) * size_of(sums)));
}

namespace {

/// Calls body(tile, first row, rows) for every tile of the shard's logits; `body` begins with the logits in the tile.
template <class Body>
void for_tiles(const HeadShard& of, Body body) {
  const std::size_t rows = of.x.size(0);
  const std::size_t ids = of.W.size(0);
  const std::size_t step = logit_tile_rows(of.rank.pieces().logits, ids, of.sums);
  const OwnedTensor tile = of.rank.tensor(Category::workspace, of.sums, {std::min(step, rows), ids}, "logits");
  for (std::size_t row = 0; row < rows; row += step) {
    const std::size_t count = std::min(step, rows - row);
    const Tensor logits = tile->slice(0, 0, count);
    of.rank.compute().gemm("W_vocab", logits, of.x.slice(0, row, count), of.W.transposed(0, 1));
    of.bias.add_to(of.rank.compute(), logits);
    if (of.logit_cap > 0) of.rank.compute().cap_logits(logits, of.logit_cap);
    body(logits, row, count);
  }
}

}  // namespace

void HeadShard::add_to_loss(const Tensor& maximum, const Tensor& sum, const Tensor& label_logit, const LogitsSink* logits,
                            std::span<const std::size_t> numbers) const {
  for_tiles(*this, [&](const Tensor& tile, std::size_t row, std::size_t count) {
    if (logits != nullptr) (*logits)(numbers.subspan(row, count), first_id, tile);
    rank.compute().cross_entropy_update(maximum.slice(0, row, count), sum.slice(0, row, count), label_logit.slice(0, row, count),
                                        tile, labels.subspan(row, count), static_cast<std::int64_t>(first_id));
  });
}

double HeadShard::merged_loss(Communicator& axis, const std::vector<std::size_t>& counts, const Tensor& lse,
                              const LogitsSink* logits, std::span<const std::size_t> numbers) const {
  ComputeStream& compute = rank.compute();
  const auto vector = [&](std::string_view what) { return rank.tensor(Category::communication, sums, {x.size(0)}, what); };
  const OwnedTensor maximum = vector("maxima of logits");
  const OwnedTensor sum = vector("sums of exponentials");
  const OwnedTensor label_logit = vector("labels' logits");
  compute.cross_entropy_begin(maximum, sum, label_logit);
  add_to_loss(maximum, sum, label_logit, logits, numbers);
  const OwnedTensor& part_lse = maximum;
  compute.cross_entropy_finish(part_lse, maximum, sum);
  const auto me = counts.begin() + axis.rank();
  const std::size_t first = std::accumulate(counts.begin(), me, std::size_t{0});
  const std::vector<std::size_t> mine(counts.size(), *me);
  const OwnedTensor parts = rank.tensor(Category::communication, sums, {counts.size(), *me}, "log-sum-exp parts");
  rank.wait(axis.post_all_to_all_v(buffer_of(ConstTensor(part_lse.view())), counts, buffer_of(parts.view()), mine, kMergedHead));
  std::vector<ConstTensor> in_order;
  for (std::size_t r = 0; r < counts.size(); ++r) in_order.push_back(parts->select(0, r));
  const Tensor merged = lse.slice(0, first, *me);
  compute.merge_log_sum_exp(merged, in_order);
  rank.wait(axis.post_all_gather_v(buffer_of(ConstTensor(merged)), buffer_of(lse), counts, kMergedHead));

  // Σ log-sum-exp of this rank's part of the tokens, minus the logits of the labels among this shard's ids.
  const OwnedTensor& zeros = sum;
  compute.fill_zero(zeros);
  return compute.cross_entropy_loss(merged, zeros->slice(0, 0, *me), labels.subspan(first, *me)) +
         compute.cross_entropy_loss(zeros, label_logit, labels);
}

double HeadShard::loss_and_gradients(const Tensor& dx, const Tensor& dW, const Tensor& lse, double weight, Write into_dW) const {
  ComputeStream& compute = rank.compute();
  const auto vector = [&](std::string_view what) { return rank.tensor(Category::workspace, sums, {x.size(0)}, what); };
  const OwnedTensor maximum = vector("maxima of logits");
  const OwnedTensor sum = vector("sums of exponentials");
  const OwnedTensor label_logit = vector("labels' logits");
  compute.cross_entropy_begin(maximum, sum, label_logit);
  if (x.size(0) == 0 && into_dW == Write::replace) compute.fill_zero(dW);
  for_tiles(*this, [&](const Tensor& tile, std::size_t row, std::size_t count) {
    const Tensor maxima = maximum->slice(0, row, count);
    const Tensor exponentials = sum->slice(0, row, count);
    compute.cross_entropy_update(maxima, exponentials, label_logit->slice(0, row, count), tile, labels.subspan(row, count),
                                 static_cast<std::int64_t>(first_id));
    compute.cross_entropy_finish(lse.slice(0, row, count), maxima, exponentials);
    add_gradients(tile, row, dx, dW, lse, weight, Write::replace, into_dW);
  });
  return compute.cross_entropy_loss(lse, label_logit, labels);
}

void HeadShard::add_gradients(const Tensor& tile, std::size_t row, const Tensor& dx, const Tensor& dW, const ConstTensor& lse,
                              double weight, Write into_dx, Write into_dW) const {
  ComputeStream& compute = rank.compute();
  const std::size_t count = tile.size(0);
  compute.cross_entropy_backward(tile, tile, lse.slice(0, row, count), labels.subspan(row, count),
                                 static_cast<std::int64_t>(first_id), weight, logit_cap);
  compute.gemm("dX of W_vocab", dx.slice(0, row, count), tile, W, into_dx);
  compute.gemm("dW_vocab", dW, tile.transposed(0, 1), x.slice(0, row, count), row == 0 ? into_dW : Write::add);
  bias.add_gradient(compute, tile);
}

void HeadShard::backward(const Tensor& dx, const Tensor& dW, const ConstTensor& lse, double weight, Write into_dx,
                         Write into_dW) const {
  if (x.size(0) == 0 && into_dW == Write::replace) rank.compute().fill_zero(dW);
  for_tiles(*this, [&](const Tensor& tile, std::size_t row, std::size_t) {
    add_gradients(tile, row, dx, dW, lse, weight, into_dx, into_dW);
  });
}

double ExchangedVocabulary::head(const ConstTensor& x, const Tensor& lse, const TokenLayout& tokens,
                                 std::span<const std::int64_t> labels, const LogitsSink* logits, std::optional<double> weight) {
  const bool all = plan_ == HeadPlan::gather_activations;
  if (!labels.empty()) std::ranges::copy(tokens.take(me(), labels), own_labels_.begin());
  labels_ = own_labels_;
  if (all) {
    if (labels.empty()) all_labels_.resize(tokens.batch() * tokens.sequence());
    for (int q = 0; q < size() && !labels.empty(); ++q) {
      const std::vector<std::int64_t> theirs = tokens.take(q, labels);
      all_labels_.insert(all_labels_.end(), theirs.begin(), theirs.end());
    }
    labels_ = all_labels_;
  }
  if (logits != nullptr) {
    std::vector<std::size_t> numbers(tokens.batch() * tokens.sequence());
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    for (int q = 0; q < size(); ++q) {
      if (!all && q != me()) continue;
      const std::vector<std::size_t> theirs = tokens.take(q, std::span<const std::size_t>(numbers));
      row_numbers_.insert(row_numbers_.end(), theirs.begin(), theirs.end());
    }
  }
  if (size() == 1 && weight) {
    head_dx_ = head_input_gradient(rank_, x, lse.dtype());
    return shard_of(x, weights_.head, me(), lse.dtype())
        .loss_and_gradients(head_dx_, weights_.head_gradient, lse, *weight, micro_batch_.write());
  }
  return all ? head_gathered(x, lse, tokens, logits, weight.has_value()) : head_rotated(x, lse, logits);
}

OwnedTensor ExchangedVocabulary::head_backward(const ConstTensor& x, const ConstTensor& lse, const TokenLayout& tokens,
                                               double weight) {
  if (size() == 1) return std::move(head_dx_);
  return plan_ == HeadPlan::gather_activations ? head_backward_gathered(x, tokens, weight)
                                               : head_backward_rotated(x, lse, weight);
}

HeadShard ExchangedVocabulary::shard_of(const ConstTensor& x, const ConstTensor& W, int owner, DType sums) const {
  return {rank_,
          x,
          W,
          rows_.offset(owner),
          labels_,
          sums,
          weights_.logit_cap,
          weights_.head_bias.slice(rows_.offset(owner), rows_.count(owner))};
}

RingShards ExchangedVocabulary::rotation() {
  return {rank_,
          axis_,
          weights_.head,
          [this](int r) { return rows_.count(r); },
          CallOptions{.stream = Stream::weights, .purpose = Purpose::head},
          "vocabulary shard"};
}

double ExchangedVocabulary::head_rotated(const ConstTensor& x, const Tensor& lse, const LogitsSink* logits) {
  ComputeStream& compute = rank_.compute();
  const std::size_t rows = x.size(0);
  const DType sums = lse.dtype();
  const OwnedTensor maximum = rank_.tensor(Category::workspace, sums, {rows}, "maxima of logits");
  const OwnedTensor sum = rank_.tensor(Category::workspace, sums, {rows}, "sums of exponentials");
  const OwnedTensor label_logit = rank_.tensor(Category::workspace, sums, {rows}, "labels' logits");
  compute.cross_entropy_begin(maximum, sum, label_logit);
  RingShards ring = rotation();
  const auto multiply = [&](std::size_t t) {
    shard_of(x, ring.at(t), shard_at(axis_, t), sums).add_to_loss(maximum, sum, label_logit, logits, row_numbers_);
  };
  look_ahead(static_cast<std::size_t>(size()), {{1, [&](std::size_t t) { ring.fetch(t); }}, {0, multiply}});
  compute.cross_entropy_finish(lse, maximum, sum);
  return compute.cross_entropy_loss(lse, label_logit, labels_);
}

OwnedTensor ExchangedVocabulary::head_backward_rotated(const ConstTensor& x, const ConstTensor& lse, double weight) {
  OwnedTensor dx = head_input_gradient(rank_, x, lse.dtype());
  RingShards ring = rotation();
  MicroBatchGradient own(rank_, micro_batch_, weights_.head_gradient, Category::communication, "vocabulary gradient shard");
  RingSums sums(
      rank_, axis_, own.rows(), [this](int r) { return rows_.count(r); },
      CallOptions{.stream = Stream::gradients, .purpose = Purpose::head}, "vocabulary gradient shard");
  const auto multiply = [&](std::size_t t) {
    shard_of(x, ring.at(t), shard_at(axis_, t), lse.dtype())
        .backward(dx, sums.part(t), lse, weight, t == 0 ? Write::replace : Write::add, Write::replace);
    sums.pass_on(t);
  };
  look_ahead(static_cast<std::size_t>(size()), {{1, [&](std::size_t t) { ring.fetch(t); }}, {0, multiply}});
  sums.settle();
  own.add();
  return dx;
}

}  // namespace tsprun::detail
