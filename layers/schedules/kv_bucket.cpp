// Gathers and scatters a bucket with one all_gather_v and one reduce_scatter_v for each half of the sequence, or, where a window
// hides keys, with messages between the ranks that see each other's tokens.
#include "layers/schedules/kv_bucket.h"

#include "core/kernels/check.h"

#include <algorithm>
#include <utility>

namespace tsprun::detail {

namespace {

constexpr CallOptions kKv{.stream = Stream::kv, .purpose = Purpose::kv};

/// Chunks of one half of the sequence: counts[r] and offsets[r], in elements, are rank r's.
struct HalfChunks {
  std::vector<std::size_t> counts;
  std::vector<std::size_t> offsets;

  HalfChunks(const TokenLayout& tokens, std::size_t half, std::size_t token_elements) {
    for (int r = 0; r < tokens.cut().ranks(); ++r) {
      const LocalChunk chunk = tokens.chunks_of(r)[half];
      counts.push_back(chunk.count * token_elements);
      offsets.push_back(chunk.start * token_elements);
    }
  }
};

std::size_t token_elements(const OwnedTensor& both) { return both->size(1) * both->size(2) * both->size(3); }

/// Returns the last `count` rows.
Tensor last_rows(const Tensor& rows, std::size_t count) { return rows.slice(0, rows.size(0) - count, count); }

/// Posts a message to one rank and one from another, as far as they have rows, and adds the operation to `works`.
void post_messages(Communicator& axis, const Tensor& send, int to, const Tensor& recv, int from, std::vector<Work>& works) {
  const bool sends = send.elements() > 0;
  const bool receives = recv.elements() > 0;
  if (sends && receives) works.push_back(axis.post_send_recv(buffer_of(ConstTensor(send)), to, buffer_of(recv), from, kKv));
  else if (sends) works.push_back(axis.post_send(buffer_of(ConstTensor(send)), to, kKv));
  else if (receives) works.push_back(axis.post_recv(buffer_of(recv), from, kKv));
}

/// Ranks at a distance from this one, on the two sides.
struct Sides {
  int left;
  int right;
  Sides(const Communicator& axis, int distance)
      : left((axis.rank() + axis.size() - distance) % axis.size()), right((axis.rank() + distance) % axis.size()) {}
};

}  // namespace

Tensor KvBucket::part_of(const OwnedTensor& both, std::size_t which) const {
  return both->select(1, which).transposed(0, 1).split(2, head_dim_);
}

/// Returns the rows of a chunk's tokens, as many as this rank takes of them.
Tensor KvBucket::rows_of(const OwnedTensor& both, const TokenLayout& tokens, const LocalChunk& chunk) const {
  return both->slice(0, keys_->before(tokens.part(), chunk.start), keys_->count(tokens.part(), chunk.start, chunk.end()));
}

void KvBucket::gather(Rank& rank, Communicator& axis, const TokenLayout& tokens, std::size_t window, const ConstTensor& k,
                      const ConstTensor& v) {
  head_dim_ = k.size(3);
  keys_.emplace(tokens.cut(), window);
  kv_ = rank.tensor(Category::communication, k.dtype(), {keys_->count(tokens.part()), 2, tokens.batch(), k.size(2) * head_dim_},
                    "K/V bucket");
  const std::array<LocalChunk, kHalves> mine = tokens.chunks();
  for (std::size_t half = 0; half < kHalves; ++half) {
    const LocalChunk& chunk = mine[half];
    const Tensor place = rows_of(kv_, tokens, chunk);
    std::size_t which = 0;
    for (const ConstTensor* from : {&k, &v}) {
      rank.compute().convert(place.select(1, which++).transposed(0, 1), from->slice(1, chunk.first, chunk.count).merged(2));
    }
    if (!keys_->all()) continue;
    const HalfChunks chunks(tokens, half, token_elements(kv_));
    arriving_.push_back(axis.post_all_gather_v(buffer_of(place), buffer_of(kv_.view()), chunks.counts, chunks.offsets, kKv));
  }
  if (!keys_->all()) send_seen(axis, tokens);
}

/// Begins to send the last tokens of this rank's chunks to those who see them, and to receive what it sees.
void KvBucket::send_seen(Communicator& axis, const TokenLayout& tokens) {
  for (int distance = 1; distance < axis.size(); ++distance) {
    const auto [left, right] = Sides(axis, distance);
    if (!keys_->may_share(left, tokens.part()) && !keys_->may_share(right, tokens.part())) continue;
    for (std::size_t half = 0; half < kHalves; ++half) {
      const LocalChunk mine = tokens.chunks()[half];
      const Tensor taken = last_rows(rows_of(kv_, tokens, mine), keys_->count(right, mine.start, mine.end()));
      post_messages(axis, taken, right, rows_of(kv_, tokens, tokens.chunks_of(left)[half]), left, arriving_);
    }
  }
}

void KvBucket::arrive(Rank& rank) {
  for (const Work& work : arriving_) rank.wait(work);
}

void KvBucket::make_gradients(Rank& rank) {
  gradients_ = rank.tensor(Category::communication, kernels::summed_in(kv_->dtype()),
                           {kv_->size(0), kv_->size(1), kv_->size(2), kv_->size(3)}, "dK/dV bucket");
  rank.compute().fill_zero(gradients_);
}

void KvBucket::scatter(Rank& rank, Communicator& axis, const TokenLayout& tokens) {
  kv_.reset();
  if (!keys_->all()) return send_gradients(rank, axis, tokens);
  const std::array<LocalChunk, kHalves> mine = tokens.chunks();
  for (std::size_t half = 0; half < kHalves; ++half) {
    const Tensor place = rows_of(gradients_, tokens, mine[half]);
    const HalfChunks chunks(tokens, half, token_elements(gradients_));
    leaving_.push_back(axis.post_reduce_scatter_v(buffer_of(ConstTensor(gradients_.view())), buffer_of(place), chunks.counts,
                                                  chunks.offsets, Reduction::sum, kKv));
  }
}

/// Begins to send gradients of others' tokens home, and to receive the terms of this rank's own, those of rank p + 1 first.
void KvBucket::send_gradients(Rank& rank, Communicator& axis, const TokenLayout& tokens) {
  for (int distance = 1; distance < axis.size(); ++distance) {
    const auto [left, right] = Sides(axis, distance);
    if (!keys_->may_share(left, tokens.part()) && !keys_->may_share(right, tokens.part())) continue;
    for (std::size_t half = 0; half < kHalves; ++half) {
      const LocalChunk mine = tokens.chunks()[half];
      const std::size_t rows = keys_->count(right, mine.start, mine.end());
      OwnedTensor term;
      if (rows > 0)
        term = rank.tensor(Category::communication, gradients_->dtype(),
                           {rows, gradients_->size(1), gradients_->size(2), gradients_->size(3)}, "dK/dV of another rank");
      post_messages(axis, rows_of(gradients_, tokens, tokens.chunks_of(left)[half]), left, term, right, leaving_);
      if (rows > 0) terms_[half].push_back(std::move(term));
    }
  }
}

void KvBucket::finish(Rank& rank, const TokenLayout& tokens) {
  for (const Work& work : leaving_) rank.wait(work);
  if (keys_->all()) return;
  const auto add = [&](const Tensor& to, const Tensor& term) {
    rank.compute().add(last_rows(to, term.size(0)), last_rows(to, term.size(0)), term);
  };
  for (std::size_t half = 0; half < kHalves; ++half) {
    OwnedTensor sum;  // of the terms so far, in the one that has most rows: the order of two summands makes no difference
    for (OwnedTensor& term : terms_[half]) {
      if (!sum.exists() || sum->size(0) < term->size(0)) std::swap(sum, term);
      if (term.exists()) add(sum, term);
      term.reset();
    }
    if (sum.exists()) add(rows_of(gradients_, tokens, tokens.chunks()[half]), sum);
  }
}

void KvBucket::take_sum(Rank& rank, const TokenLayout& tokens, std::size_t which, const Tensor& to) const {
  for (const LocalChunk& chunk : tokens.chunks()) {
    rank.compute().convert(to.slice(1, chunk.first, chunk.count).merged(2),
                           rows_of(gradients_, tokens, chunk).select(1, which).transposed(0, 1));
  }
}

std::size_t kv_bucket_heads(std::size_t bytes, std::size_t batch, std::size_t sequence, std::size_t head_dim, std::size_t element,
                            std::size_t heads) {
  const std::size_t head_bytes = std::max<std::size_t>(1, 2 * batch * sequence * head_dim * element);
  return std::clamp<std::size_t>(bytes / head_bytes, 1, std::max<std::size_t>(heads, 1));
}

}  // namespace tsprun::detail
