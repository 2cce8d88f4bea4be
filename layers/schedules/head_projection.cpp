// Norms of q, k and v: of each head, or of all heads of a token, which may be on several ranks; and v that is W_K's product.
#include "layers/schedules/head_projection.h"

#include "core/kernels/check.h"
#include "layers/schedules/all_reduce.h"

namespace tsprun::detail {

namespace {

/// Returns the heads whose squares this rank counts.
template <class View>
View counted(const HeadNorm& norm, const View& heads) {
  return heads.slice(2, norm.copies, heads.size(2) - norm.copies);
}

/// Returns room for some sums of each row of `product` [B, S, heads, d].
OwnedTensor sums_of_rows(Rank& rank, const ConstTensor& product, std::size_t kinds) {
  return rank.tensor(Category::communication, kernels::summed_in(product.dtype()), {kinds, product.size(0) * product.size(1)},
                     "sums of rows of heads");
}

void sum_over_ranks(Rank& rank, const HeadNorm& norm, const Tensor& sums) {
  if (!sums.empty()) rank.wait(post_sum(*norm.ranks, sums, {.stream = Stream::control, .purpose = Purpose::activations}));
}

}  // namespace

void HeadProjection::norm(const Tensor& x, const Tensor& product) const {
  const auto compute = [&](const Tensor& to, const Tensor& from, const kernels::WholeRows& whole) {
    compute_.rms_norm(to, from, norm_.gain.values, norm_.epsilon, norm_.form, whole);
  };
  if (norm_.row_width == 0) return compute(x, product, {});
  if (norm_.ranks == nullptr) return compute(matrix_of(x), matrix_of(product), {});
  const OwnedTensor sums = sums_of_rows(rank_, product, 1);
  const Tensor squares = sums->select(0, 0);
  compute_.row_sums(squares, matrix_of(counted(norm_, product)));
  sum_over_ranks(rank_, norm_, sums);
  compute(matrix_of(x), matrix_of(product), {norm_.row_width, squares});
}

void HeadProjection::norm_backward(const Tensor& d, const ConstTensor& product) const {
  const auto compute = [&](const Tensor& of, const ConstTensor& by, const Bias& gain, const kernels::WholeRows& whole) {
    compute_.rms_norm_backward(of, gain.gradient, of, by, gain.values, norm_.epsilon, kernels::Write::replace, norm_.form, whole);
  };
  if (norm_.row_width == 0) return compute(d, product, norm_.gain, {});
  if (norm_.ranks == nullptr) return compute(matrix_of(d), matrix_of(product), norm_.gain, {});
  const OwnedTensor sums = sums_of_rows(rank_, product, 2);
  const Tensor squares = sums->select(0, 0);
  const Tensor products = sums->select(0, 1);
  compute_.row_sums(squares, matrix_of(counted(norm_, product)));
  compute_.row_sums(products, matrix_of(product), matrix_of(d), norm_.gain.values, norm_.form);
  sum_over_ranks(rank_, norm_, sums);
  // The gradient of a head with copies is the sum of theirs, and one of them has the term that whole rows add.
  const auto part = [&](std::size_t first, std::size_t count, const ConstTensor& of_rows) {
    const std::size_t width = product.size(3);
    if (count > 0)
      compute(matrix_of(d.slice(2, first, count)), matrix_of(product.slice(2, first, count)),
              norm_.gain.slice(first * width, count * width), {norm_.row_width, squares, of_rows});
  };
  part(0, norm_.copies, {});
  part(norm_.copies, product.size(2) - norm_.copies, products);
}

void HeadProjections::finish_keys(const HeadRange& heads, const Tensor& k, const Tensor& product, const Tensor& v) const {
  const HeadProjection of_k = key(heads);
  of_k.add_bias(product);
  if (layer_.value_is_key && layer_.norms_values) value(heads).turn(v, product);
  else if (layer_.value_is_key) rank_.compute().convert(v, product);
  of_k.turn(k, product);
}

void HeadProjections::finish_backward(const HeadRange& heads, const Tensor& dk, const Tensor& dv, const ConstTensor& k_product,
                                      const ConstTensor& v_product) const {
  key(heads).finish_backward(dk, k_product);
  value(heads).finish_backward(dv, layer_.value_is_key ? k_product : v_product);
  if (layer_.value_is_key) rank_.compute().add(dk, dk, dv);
}

}  // namespace tsprun::detail
