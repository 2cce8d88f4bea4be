// Runs flash attention for each of the two chunks of this rank's tokens.
#include "layers/schedules/bucket_attention.h"

namespace tsprun::detail {

using kernels::Write;

namespace {

kernels::Attention attention_of(const BucketReaders& readers, const LocalChunk& chunk) {
  return {.scale = readers.scale,
          .mask = kernels::Mask::from_positions(chunk.start, 0, readers.window, readers.documents),
          .heads = readers.heads,
          .dropout = readers.dropout.of(readers.dropout.first_head, {.start = chunk.start}, {}),
          .cap = readers.score_cap};
}

}  // namespace

void attend_bucket(ComputeStream& compute, const TokenLayout& tokens, const KvBucket& bucket, const BucketReaders& readers) {
  const Tensor K = bucket.K();
  const Tensor V = bucket.V();
  for (const LocalChunk& chunk : tokens.chunks()) {
    if (chunk.count == 0) continue;
    const auto rows = [&](const Tensor& all) { return all.slice(1, chunk.first, chunk.count); };
    readers.lse.write(chunk.first, chunk.count, rows(readers.o), [&](const Tensor& lse) {
      compute.flash_forward(attention_of(readers, chunk), rows(readers.o), lse, rows(readers.q), K.slice(1, 0, chunk.end()),
                            V.slice(1, 0, chunk.end()));
    });
  }
}

void attend_bucket_backward(Rank& rank, const TokenLayout& tokens, const KvBucket& bucket, const BucketReaders& readers,
                            const Tensor& dq, const ConstTensor& dO) {
  const OwnedTensor delta =
      rank.tensor(Category::workspace, dq.dtype(), {tokens.batch(), readers.q.size(2), tokens.local()}, "delta of attention");
  rank.compute().flash_delta(delta, dO, readers.o);
  for (const LocalChunk& chunk : tokens.chunks()) {
    if (chunk.count == 0) continue;
    const auto rows = [&](const auto& all) { return all.slice(1, chunk.first, chunk.count); };
    const auto keys = [&](const Tensor& all) { return all.slice(1, 0, chunk.end()); };
    const auto statistics = [&](const Tensor& all) { return all.slice(2, chunk.first, chunk.count); };
    rank.compute().flash_backward(attention_of(readers, chunk), rows(dq), keys(bucket.dK()), keys(bucket.dV()), rows(dO),
                                  statistics(readers.lse.view()), statistics(delta), rows(readers.q), keys(bucket.K()),
                                  keys(bucket.V()), Write::add);
  }
}

}  // namespace tsprun::detail
