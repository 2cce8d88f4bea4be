// SP gather: K and V are all-gathered, some K/V heads at a time, and every rank's queries attend to the keys of whole sequences.
// While one bucket is computed, the next is gathered; in the backward pass its gradients leave while the next is computed. Of
// layers with a window ranks gather the keys alone that their queries see.
#include "layers/schedules/bucket_attention.h"
#include "layers/schedules/look_ahead.h"
#include "layers/schedules/sp/sequence_attention.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

namespace tsprun::detail {

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
  using SequenceAttention::SequenceAttention;

  void begin(SequencePass& pass, const TokenLayout& tokens, std::size_t window, const ConstTensor& k,
             const ConstTensor& v) override {
    if (pass.first_bucket.begun()) throw std::logic_error("gathered attention begins twice");
    gather(pass.first_bucket, plan(tokens)[0], tokens, window, k, v);
  }
  void forward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of) override;
  void backward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of, const Gradients& gradients,
                Outputs outputs, const std::function<void()>& queries_done) override;

 private:
  std::vector<BucketHeads> plan(const TokenLayout& tokens) const {
    return plan_buckets(heads_, kv_bucket_heads(axis_.rank.pieces().kv_bucket, tokens.batch(), tokens.sequence(), heads_.head_dim,
                                                size_of(axis_.dtype), heads_.kv));
  }
  /// Begins to gather the bucket, unless that was begun already.
  void gather(KvBucket& bucket, const BucketHeads& heads, const TokenLayout& tokens, std::size_t window, const ConstTensor& k,
              const ConstTensor& v) const {
    if (bucket.begun()) return;
    bucket.gather(axis_.rank, axis_.group, tokens, window, k.slice(2, heads.first_kv, heads.kv),
                  v.slice(2, heads.first_kv, heads.kv));
  }
  BucketReaders readers(const SequencePass& pass, const BucketHeads& heads, const AttentionHeads& of) const {
    return {.scale = heads_.scale,
            .heads = {heads_.map.group, heads_.map.first_query + heads.first_query, heads_.map.first_kv + heads.first_kv},
            .dropout = dropout(pass, heads.first_query),
            .q = of.q.slice(2, heads.first_query, heads.queries),
            .o = of.o.slice(2, heads.first_query, heads.queries),
            .lse = of.lse.heads(heads.first_query, heads.queries),
            .window = of.window,
            .documents = pass.documents,
            .score_cap = of.score_cap};
  }
};

void GatherAttention::forward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of) {
  const std::vector<BucketHeads> buckets = plan(tokens);
  std::vector<KvBucket> gathered(buckets.size());
  gathered[0] = std::exchange(pass.first_bucket, {});

  const auto bring = [&](std::size_t i) { gather(gathered[i], buckets[i], tokens, of.window, of.k, of.v); };

  const auto compute = [&](std::size_t i) {
    gathered[i].arrive(axis_.rank);
    attend_bucket(axis_.compute(), tokens, gathered[i], readers(pass, buckets[i], of));
    gathered[i] = {};
  };

  look_ahead(buckets.size(), {{1, bring}, {0, compute}});
}

void GatherAttention::backward(SequencePass& pass, const TokenLayout& tokens, const AttentionHeads& of,
                               const Gradients& gradients, Outputs outputs, const std::function<void()>& queries_done) {
  const std::vector<BucketHeads> buckets = plan(tokens);
  std::vector<KvBucket> gathered(buckets.size());
  gathered[0] = std::exchange(pass.first_bucket, {});

  const auto bring = [&](std::size_t i) { gather(gathered[i], buckets[i], tokens, of.window, of.k, of.v); };

  // dq of the heads that read the bucket, and this rank's part of its dK̂ and dV̂, which begin to leave.
  const auto compute = [&](std::size_t i) {
    const BucketReaders heads = readers(pass, buckets[i], of);
    const auto own = [&](const auto& all) { return all.slice(2, buckets[i].first_query, buckets[i].queries); };
    gathered[i].arrive(axis_.rank);
    if (outputs == Outputs::made_again) attend_bucket(axis_.compute(), tokens, gathered[i], heads);
    axis_.compute().fill_zero(own(gradients.dq));
    gathered[i].make_gradients(axis_.rank);
    attend_bucket_backward(axis_.rank, tokens, gathered[i], heads, own(gradients.dq), own(gradients.d_o));
    gathered[i].scatter(axis_.rank, axis_.group, tokens);
  };

  const auto finish = [&](std::size_t i) {
    if (i + 1 == buckets.size()) queries_done();
    gathered[i].finish(axis_.rank, tokens);
    gathered[i].take_sum(axis_.rank, tokens, 0, gradients.dk.slice(2, buckets[i].first_kv, buckets[i].kv));
    gathered[i].take_sum(axis_.rank, tokens, 1, gradients.dv.slice(2, buckets[i].first_kv, buckets[i].kv));
    gathered[i] = {};
  };

  look_ahead(buckets.size(), {{1, bring}, {0, compute}, {-1, finish}});
}

}  // namespace

std::unique_ptr<SequenceAttention> make_gather_attention(const SequenceAxis& axis, const SequenceHeads& heads) {
  return std::make_unique<GatherAttention>(axis, heads);
}

}  // namespace tsprun::detail
