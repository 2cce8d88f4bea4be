// Runs flash attention for each of the two chunks of this rank's tokens.
#include "layers/schedules/bucket_attention.h"

namespace tsprun::detail {

using kernels::Write;

namespace {

/// The bucket's keys that a chunk of this rank's tokens is shown: `count` from row `first` on, which is at position `start`.
LocalChunk keys_of(const TokenLayout& tokens, const KvBucket& bucket, std::size_t half) {
  const SeenKeys& keys = bucket.keys();
  const std::size_t start = keys.first_of(tokens.cut().chunks_of(tokens.part())[half]);
  return {start, keys.before(tokens.part(), start), tokens.chunks()[half].end() - start};
}

kernels::Attention attention_of(const BucketReaders& readers, const LocalChunk& chunk, const LocalChunk& keys) {
  return {.scale = readers.scale,
          .mask = kernels::Mask::from_positions(chunk.start, keys.start, readers.window, readers.documents),
          .heads = readers.heads,
          .dropout = readers.dropout.of(readers.dropout.first_head, {.start = chunk.start}, {.start = keys.start}),
          .cap = readers.score_cap};
}

}  // namespace

void attend_bucket(ComputeStream& compute, const TokenLayout& tokens, const KvBucket& bucket, const BucketReaders& readers) {
  const Tensor K = bucket.K();
  const Tensor V = bucket.V();
  for (std::size_t half = 0; half < kHalves; ++half) {
    const LocalChunk chunk = tokens.chunks()[half];
    if (chunk.count == 0) continue;
    const LocalChunk keys = keys_of(tokens, bucket, half);
    const auto rows = [&](const Tensor& all) { return all.slice(1, chunk.first, chunk.count); };
    readers.lse.write(chunk.first, chunk.count, rows(readers.o), [&](const Tensor& lse) {
      compute.flash_forward(attention_of(readers, chunk, keys), rows(readers.o), lse, rows(readers.q),
                            K.slice(1, keys.first, keys.count), V.slice(1, keys.first, keys.count));
    });
  }
}

void attend_bucket_backward(Rank& rank, const TokenLayout& tokens, const KvBucket& bucket, const BucketReaders& readers,
                            const Tensor& dq, const ConstTensor& dO) {
  const OwnedTensor delta =
      rank.tensor(Category::workspace, dq.dtype(), {tokens.batch(), readers.q.size(2), tokens.local()}, "delta of attention");
  rank.compute().flash_delta(delta, dO, readers.o);
  for (std::size_t half = 0; half < kHalves; ++half) {
    const LocalChunk chunk = tokens.chunks()[half];
    if (chunk.count == 0) continue;
    const LocalChunk seen = keys_of(tokens, bucket, half);
    const auto rows = [&](const auto& all) { return all.slice(1, chunk.first, chunk.count); };
    const auto keys = [&](const Tensor& all) { return all.slice(1, seen.first, seen.count); };
    const auto statistics = [&](const Tensor& all) { return all.slice(2, chunk.first, chunk.count); };
    rank.compute().flash_backward(attention_of(readers, chunk, seen), rows(dq), keys(bucket.dK()), keys(bucket.dV()), rows(dO),
                                  statistics(readers.lse.view()), statistics(delta), rows(readers.q), keys(bucket.K()),
                                  keys(bucket.V()), Write::add);
  }
}

}  // namespace tsprun::detail
