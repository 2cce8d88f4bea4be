// Attention to a gathered bucket of K and V (kv_bucket.h): each chunk of this rank's tokens attends to the keys up to its
// end, as far as the bucket has them.
#pragma once

#include "layers/schedules/kv_bucket.h"
#include "layers/schedules/log_sum_exps.h"

namespace tsprun::detail {

/// The n query heads of this rank's tokens that read a bucket.
struct BucketReaders {
  double scale;                       ///< of scores
  kernels::HeadMap heads;             ///< says which of the bucket's K/V heads a query head reads
  kernels::AttentionDropout dropout;  ///< for the first query head
  Tensor q, o;                        ///< [B, S_p, n, d]
  LogSumExps lse;                     ///< [B, n, S_p]
  std::size_t window = 0;             ///< LayerSpec::window and LayerSpec::score_cap of the layer
  kernels::Documents documents = {};
  double score_cap = 0;
};

/// Computes o and lse. The bucket must have arrived.
void attend_bucket(ComputeStream& compute, const TokenLayout& tokens, const KvBucket& bucket, const BucketReaders& readers);
/// Adds to dq [B, S_p, n, d] and to the bucket's dK and dV, with Δ = rowsum(dO ∘ o). dO as o; the others are in the type of sums.
void attend_bucket_backward(Rank& rank, const TokenLayout& tokens, const KvBucket& bucket, const BucketReaders& readers,
                            const Tensor& dq, const ConstTensor& dO);

}  // namespace tsprun::detail
