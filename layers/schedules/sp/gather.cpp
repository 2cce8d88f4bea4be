// SP gather: K and V are all-gathered, some K/V heads at a time, and every rank's queries attend to the keys of whole sequences.
// While one bucket is computed, the next is gathered; in the backward pass its gradients leave while the next is computed.
#include "layers/schedules/kv_bucket.h"
#include "layers/schedules/sp/exchanges.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace tsprun::detail {

using kernels::Write;

namespace {

/// A bucket's K/V heads and the query heads that read them, by their numbers on this rank.
struct BucketHeads {
  std::size_t first_kv;
  std::size_t kv;
  std::size_t first_query;
  std::size_t queries;
};

/// Plans buckets of `heads.bucket_heads` K/V heads, or, if that is 0, of at most `most`; then at least two buckets if there are
/// two heads, so that the second is gathered while the first is computed.
std::vector<BucketHeads> plan_buckets(const SequenceHeads& heads, std::size_t most) {
  const std::size_t width = heads.bucket_heads != 0 ? heads.bucket_heads : std::min(most, (heads.kv + 1) / 2);
  // The first query head of this rank that reads K/V head `kv` or a later one.
  const auto first_reader = [&](std::size_t kv) {
    const std::size_t global = (heads.map.first_kv + kv) * heads.map.group;
    return std::clamp(global, heads.map.first_query, heads.map.first_query + heads.queries) - heads.map.first_query;
  };
  std::vector<BucketHeads> buckets;
  for (std::size_t kv = 0; kv < heads.kv; kv += width) {
    const std::size_t count = std::min(width, heads.kv - kv);
    const std::size_t query = first_reader(kv);
    buckets.push_back({kv, count, query, first_reader(kv + count) - query});
  }
  return buckets;
}

class GatherAttention final : public SequenceAttention {
 public:
  GatherAttention(const SequenceAxis& axis, const SequenceHeads& heads) : SequenceAttention(heads), axis_(axis) {}

  void begin(const TokenLayout& tokens, const ConstTensor& k, const ConstTensor& v) override;
  void forward(const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q, const ConstTensor& k,
               const ConstTensor& v) override;
  void backward(const TokenLayout& tokens, const Tensor& dq, const Tensor& dk, const Tensor& dv, const ConstTensor& d_o,
                const Tensor& o, const Tensor& lse, Outputs outputs, const ConstTensor& q, const ConstTensor& k,
                const ConstTensor& v) override;
  void finish_backward() override { finish_all(); }

 private:
  /// A bucket, and views of the query heads that read it.
  struct Bucket {
    BucketHeads heads;
    KvBucket kv;

    /// Returns of [B, S_p, n_q, d] one chunk's tokens and the bucket's query heads.
    template <class View>
    View rows(const View& all, const LocalChunk& chunk) const {
      return all.slice(1, chunk.first, chunk.count).slice(2, heads.first_query, heads.queries);
    }
    /// Returns the same of [B, n_q, S_p].
    Tensor statistics(const Tensor& all, const LocalChunk& chunk) const {
      return all.slice(1, heads.first_query, heads.queries).slice(2, chunk.first, chunk.count);
    }
  };

  kernels::Attention attention(const Bucket& bucket, const LocalChunk& chunk, std::size_t head_dim) const;
  void gather(std::size_t number, const TokenLayout& tokens, const ConstTensor& k, const ConstTensor& v);
  void compute_forward(const Bucket& bucket, const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q);
  void compute_backward(Bucket& bucket, const TokenLayout& tokens, const Tensor& dq, const ConstTensor& d_o, const Tensor& o,
                        const Tensor& lse, const ConstTensor& q);
  void finish_until(std::size_t end);
  void finish_all() {
    finish_until(buckets_.size());
    buckets_.clear();
  }

  SequenceAxis axis_;
  std::vector<Bucket> buckets_;  // buckets of the current call; none between calls
  // Backward: number of buckets whose gradients are complete, and where the gradients of this rank's tokens go.
  std::size_t finished_ = 0;
  const TokenLayout* tokens_ = nullptr;
  Tensor dk_;
  Tensor dv_;
};

kernels::Attention GatherAttention::attention(const Bucket& bucket, const LocalChunk& chunk, std::size_t head_dim) const {
  const kernels::HeadMap& map = heads().map;
  return {.scale = attention_scale(head_dim),
          .mask = kernels::Mask::from_positions(chunk.start, 0),
          .heads = {map.group, map.first_query + bucket.heads.first_query, map.first_kv + bucket.heads.first_kv},
          .dropout = dropout().of(map.first_query + bucket.heads.first_query, {.start = chunk.start}, {})};
}

void GatherAttention::gather(std::size_t number, const TokenLayout& tokens, const ConstTensor& k, const ConstTensor& v) {
  if (number >= buckets_.size()) return;
  Bucket& bucket = buckets_[number];
  bucket.kv.gather(axis_.rank, axis_.group, tokens, k.slice(2, bucket.heads.first_kv, bucket.heads.kv),
                   v.slice(2, bucket.heads.first_kv, bucket.heads.kv));
}

void GatherAttention::begin(const TokenLayout& tokens, const ConstTensor& k, const ConstTensor& v) {
  if (!buckets_.empty()) throw std::logic_error("gathered attention begins before the last pass has finished");
  for (const BucketHeads& bucket :
       plan_buckets(heads(), kv_bucket_heads(tokens.batch(), tokens.sequence(), k.size(3), size_of(axis_.dtype), heads().kv))) {
    buckets_.push_back({bucket, {}});
  }
  gather(0, tokens, k, v);
}

// --- forward -----------------------------------------------------------------------------------------------------------------

/// Attends with both chunks of this rank, each on the keys up to its end.
void GatherAttention::compute_forward(const Bucket& bucket, const TokenLayout& tokens, const Tensor& o, const Tensor& lse,
                                      const ConstTensor& q) {
  for (const LocalChunk& chunk : tokens.chunks()) {
    if (chunk.count == 0) continue;
    axis_.compute().flash_forward(attention(bucket, chunk, q.size(3)), bucket.rows(o, chunk), bucket.statistics(lse, chunk),
                                  bucket.rows(q, chunk), bucket.kv.K().slice(1, 0, chunk.end()),
                                  bucket.kv.V().slice(1, 0, chunk.end()));
  }
}

void GatherAttention::forward(const TokenLayout& tokens, const Tensor& o, const Tensor& lse, const ConstTensor& q,
                              const ConstTensor& k, const ConstTensor& v) {
  if (buckets_.empty()) begin(tokens, k, v);
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    gather(i + 1, tokens, k, v);
    buckets_[i].kv.arrive(axis_.rank);
    compute_forward(buckets_[i], tokens, o, lse, q);
    buckets_[i].kv = {};
  }
  buckets_.clear();
}

// --- backward ----------------------------------------------------------------------------------------------------------------

void GatherAttention::compute_backward(Bucket& bucket, const TokenLayout& tokens, const Tensor& dq, const ConstTensor& d_o,
                                       const Tensor& o, const Tensor& lse, const ConstTensor& q) {
  ComputeStream& compute = axis_.compute();
  const LocalChunk all{.start = 0, .first = 0, .count = tokens.local()};
  const OwnedTensor delta = axis_.step(axis_.sums, {tokens.batch(), bucket.heads.queries, tokens.local()}, "delta of attention");
  compute.flash_delta(delta, bucket.rows(d_o, all), bucket.rows(o, all));
  compute.fill_zero(bucket.rows(dq, all));
  bucket.kv.make_gradients(axis_.rank);
  for (const LocalChunk& chunk : tokens.chunks()) {
    if (chunk.count == 0) continue;
    const auto prefix = [&](const Tensor& keys) { return keys.slice(1, 0, chunk.end()); };
    compute.flash_backward(attention(bucket, chunk, q.size(3)), bucket.rows(dq, chunk), prefix(bucket.kv.dK()),
                           prefix(bucket.kv.dV()), bucket.rows(d_o, chunk), bucket.statistics(lse, chunk),
                           delta->slice(2, chunk.first, chunk.count), bucket.rows(q, chunk), prefix(bucket.kv.K()),
                           prefix(bucket.kv.V()), Write::add);
  }
}

void GatherAttention::backward(const TokenLayout& tokens, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                               const ConstTensor& d_o, const Tensor& o, const Tensor& lse, Outputs outputs, const ConstTensor& q,
                               const ConstTensor& k, const ConstTensor& v) {
  if (buckets_.empty()) begin(tokens, k, v);
  finished_ = 0;
  tokens_ = &tokens;
  dk_ = dk;
  dv_ = dv;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    gather(i + 1, tokens, k, v);
    buckets_[i].kv.arrive(axis_.rank);
    if (outputs == Outputs::made_again) compute_forward(buckets_[i], tokens, o, lse, q);
    compute_backward(buckets_[i], tokens, dq, d_o, o, lse, q);
    buckets_[i].kv.scatter(axis_.group, tokens);
    // Gradients of the buckets before had time to travel while this bucket was computed.
    finish_until(i);
  }
}

void GatherAttention::finish_until(std::size_t end) {
  for (; finished_ < end; ++finished_) {
    Bucket& bucket = buckets_[finished_];
    bucket.kv.finish(axis_.rank);
    bucket.kv.take_sum(axis_.rank, *tokens_, 0, dk_.slice(2, bucket.heads.first_kv, bucket.heads.kv));
    bucket.kv.take_sum(axis_.rank, *tokens_, 1, dv_.slice(2, bucket.heads.first_kv, bucket.heads.kv));
    bucket.kv = {};
  }
}

}  // namespace

std::unique_ptr<SequenceAttention> make_gather_attention(const SequenceAxis& axis, const SequenceHeads& heads) {
  return std::make_unique<GatherAttention>(axis, heads);
}

}  // namespace tsprun::detail
