// Gathers and scatters a bucket with one all_gather_v and one reduce_scatter_v for each half of the sequence.
#include "layers/schedules/kv_bucket.h"

#include "core/kernels/check.h"

#include <algorithm>
#include <vector>

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

}  // namespace

Tensor KvBucket::part_of(const OwnedTensor& both, std::size_t which) const {
  return both->select(1, which).transposed(0, 1).split(2, head_dim_);
}

void KvBucket::gather(Rank& rank, Communicator& axis, const TokenLayout& tokens, const ConstTensor& k, const ConstTensor& v) {
  head_dim_ = k.size(3);
  kv_ = rank.tensor(Category::communication, k.dtype(), {tokens.sequence(), 2, tokens.batch(), k.size(2) * head_dim_},
                    "K/V bucket");
  const std::array<LocalChunk, kHalves> mine = tokens.chunks();
  for (std::size_t half = 0; half < kHalves; ++half) {
    const LocalChunk& chunk = mine[half];
    const Tensor place = kv_->slice(0, chunk.start, chunk.count);
    std::size_t which = 0;
    for (const ConstTensor* from : {&k, &v}) {
      rank.compute().convert(place.select(1, which++).transposed(0, 1), from->slice(1, chunk.first, chunk.count).merged(2));
    }
    const HalfChunks chunks(tokens, half, token_elements(kv_));
    arriving_[half] = axis.post_all_gather_v(buffer_of(place), buffer_of(kv_.view()), chunks.counts, chunks.offsets, kKv);
  }
}

void KvBucket::arrive(Rank& rank) {
  for (const Work& half : arriving_) rank.wait(half);
}

void KvBucket::make_gradients(Rank& rank) {
  gradients_ = rank.tensor(Category::communication, kernels::summed_in(kv_->dtype()),
                           {kv_->size(0), kv_->size(1), kv_->size(2), kv_->size(3)}, "dK/dV bucket");
  rank.compute().fill_zero(gradients_);
}

void KvBucket::scatter(Communicator& axis, const TokenLayout& tokens) {
  kv_.reset();
  const std::array<LocalChunk, kHalves> mine = tokens.chunks();
  for (std::size_t half = 0; half < kHalves; ++half) {
    const Tensor place = gradients_->slice(0, mine[half].start, mine[half].count);
    const HalfChunks chunks(tokens, half, token_elements(gradients_));
    leaving_[half] = axis.post_reduce_scatter_v(buffer_of(ConstTensor(gradients_.view())), buffer_of(place), chunks.counts,
                                                chunks.offsets, Reduction::sum, kKv);
  }
}

void KvBucket::finish(Rank& rank) {
  for (const Work& half : leaving_) rank.wait(half);
}

void KvBucket::take_sum(Rank& rank, const TokenLayout& tokens, std::size_t which, const Tensor& to) const {
  for (const LocalChunk& chunk : tokens.chunks()) {
    rank.compute().convert(to.slice(1, chunk.first, chunk.count).merged(2),
                           gradients_->slice(0, chunk.start, chunk.count).select(1, which).transposed(0, 1));
  }
}

std::size_t kv_bucket_heads(std::size_t bytes, std::size_t batch, std::size_t sequence, std::size_t head_dim, std::size_t element,
                            std::size_t heads) {
  const std::size_t head_bytes = std::max<std::size_t>(1, 2 * batch * sequence * head_dim * element);
  return std::clamp<std::size_t>(bytes / head_bytes, 1, std::max<std::size_t>(heads, 1));
}

}  // namespace tsprun::detail
