// Softmax cross-entropy over a vocabulary that arrives in shards: an online log-sum-exp per token, and the gradient of the
// logits.
//
// For T tokens the running state is three vectors [T] in the type of sums (f32, or f64 for f64 logits): `maximum`, the largest
// logit so far; `sum`, the sum of exp(logit − maximum) so far; and `label_logit`, the logit of the token's label, set when the
// shard that holds it is seen. Call cross_entropy_begin() once, cross_entropy_update() for each shard, then
// cross_entropy_finish(). Labels are token ids of the whole vocabulary.
#pragma once

#include "core/kernels/parallel.h"
#include "core/tensor/tensor.h"

#include <cstdint>
#include <span>

namespace tsprun::detail::kernels {

/// Label of a token that isn't predicted. Such a token has no loss and no gradient.
inline constexpr std::int64_t kNoLabel = -1;

/// Replaces logits [T, Vs], with dense rows, by cap·tanh(logit / cap), a soft cap; `cap` is positive. What isn't finite becomes
/// NaN.
void cap_logits(const Compute& on, const Tensor& logits, double cap);

/// Initialises the state of all tokens: maximum = −∞, sum = 0, label_logit = 0.
void cross_entropy_begin(const Tensor& maximum, const Tensor& sum, const Tensor& label_logit);

/// Updates the state with one shard of logits, [T, Vs] with dense rows, whose columns are token ids first_id, first_id + 1, ….
void cross_entropy_update(const Compute& on, const Tensor& maximum, const Tensor& sum, const Tensor& label_logit,
                          const ConstTensor& logits, std::span<const std::int64_t> labels, std::int64_t first_id);

/// Computes the log-sum-exp of each token: lse = maximum + ln sum, or −∞ where the sum is 0. `lse` may be the same memory as
/// `maximum`.
void cross_entropy_finish(const Tensor& lse, const ConstTensor& maximum, const ConstTensor& sum);

/// Merges log-sum-exps that different ranks computed for different shards: lse = ln Σ_p exp(parts[p]), summed in the order of
/// `parts`. All are [T]. A NaN in any part stays NaN.
void merge_log_sum_exp(const Tensor& lse, std::span<const ConstTensor> parts);

/// Returns the sum of (lse − the label's logit) over the tokens that have a label, in nats. The sum is in f64, in the order of
/// tokens.
double cross_entropy_loss(const ConstTensor& lse, const ConstTensor& label_logit, std::span<const std::int64_t> labels);

/// Computes the gradient of one shard's logits: dlogits[t, i] = weight·(exp(logits[t, i] − lse[t]) − [first_id + i is the label
/// of t]), and 0 for tokens without a label. `weight` is one over the number of predicted tokens. With a `cap`, `logits` and lse
/// are those after cap_logits(), and dlogits is the gradient of the logits before it, the same times 1 − (logit / cap)²; 0: none.
/// `dlogits` [T, Vs] may be the same memory as `logits`; bf16 and f32 may be mixed.
void cross_entropy_backward(const Compute& on, const Tensor& dlogits, const ConstTensor& logits, const ConstTensor& lse,
                            std::span<const std::int64_t> labels, std::int64_t first_id, double weight, double cap = 0);

}  // namespace tsprun::detail::kernels
