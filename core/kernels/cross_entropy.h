// Softmax cross-entropy over a vocabulary that arrives in shards: an online log-sum-exp per token, and the gradient of the
// logits.
//
// For T tokens the running state is three vectors [T] of the type of sums: the maximum of the logits so far (−∞ at first), the
// sum of exp(logit − maximum) so far (0 at first), and the logit of the token's label once its shard was seen. Labels are global
// token ids.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstdint>
#include <span>

namespace tsprun::kernels {

/// A token that isn't predicted: it has no loss and no gradient.
inline constexpr std::int64_t kNoLabel = -1;

/// maximum = −∞, sum = 0, label_logit = 0.
void cross_entropy_begin(const Tensor& maximum, const Tensor& sum, const Tensor& label_logit);

/// Takes in the logits [T, Vs] of token ids first_id, first_id + 1, …; dense rows.
void cross_entropy_update(const Compute& on, const Tensor& maximum, const Tensor& sum, const Tensor& label_logit,
                          const ConstTensor& logits, std::span<const std::int64_t> labels, std::int64_t first_id);

/// lse = maximum + ln sum. `lse` may be `maximum`.
void cross_entropy_finish(const Tensor& lse, const ConstTensor& maximum, const ConstTensor& sum);

/// lse = ln Σ_p exp(parts[p]), in the order of parts; each [T]. For shards whose log-sum-exps were made on different ranks.
void merge_log_sum_exp(const Tensor& lse, std::span<const ConstTensor> parts);

/// Σ over tokens with a label of (lse − label's logit), in f64, in the order of tokens.
double cross_entropy_loss(const ConstTensor& lse, const ConstTensor& label_logit, std::span<const std::int64_t> labels);

/// dlogits[t, i] = weight·(exp(logits[t, i] − lse[t]) − [first_id + i is t's label]); 0 where t has no label. `weight`: one over
/// the number of predicted tokens. `dlogits` [T, Vs] may be `logits`; types that mix.
void cross_entropy_backward(const Compute& on, const Tensor& dlogits, const ConstTensor& logits, const ConstTensor& lse,
                            std::span<const std::int64_t> labels, std::int64_t first_id, double weight);

}  // namespace tsprun::kernels
