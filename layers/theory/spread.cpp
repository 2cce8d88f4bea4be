#include "layers/theory/spread.h"

#include "transport/cause.h"

#include <fmt/format.h>

namespace tsp::theory {

std::string_view name(AxisKind kind) {
  switch (kind) {
    case AxisKind::dp: return "dp";
    case AxisKind::tp: return "tp";
    case AxisKind::sp: return "sp";
    case AxisKind::tsp: return "tsp";
    case AxisKind::zero3: return "zero3";
  }
  return "";
}

std::string_view name(TensorExchange exchange) { return exchange == TensorExchange::plain ? "plain" : "sequence"; }

std::string_view name(SequenceExchange exchange) {
  switch (exchange) {
    case SequenceExchange::gather: return "gather";
    case SequenceExchange::ring: return "ring";
    case SequenceExchange::ulysses: return "ulysses";
  }
  return "";
}

int Spread::degree(AxisKind kind) const {
  int degree = 1;
  for (const Axis& axis : axes) {
    if (axis.kind == kind) degree *= axis.degree;
  }
  return degree;
}

int Spread::ranks() const {
  int product = 1;
  for (const Axis& axis : axes) product *= axis.degree;
  return product;
}

int Spread::stride(AxisKind kind) const {
  int stride = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend() && axis->kind != kind; ++axis) stride *= axis->degree;
  return stride;
}

int Spread::token_ranks() const { return degree(AxisKind::sp) * degree(AxisKind::tsp) * degree(AxisKind::zero3); }

int Spread::vocabulary_ranks() const {
  if (tensors() == 1) return token_ranks();
  return cuts_kept_tokens() || folded() ? tensors() * token_ranks() : tensors();
}

std::string Spread::print() const {
  std::string text;
  for (const Axis& axis : axes) text += fmt::format("{}{}={}", text.empty() ? "" : ",", name(axis.kind), axis.degree);
  return text.empty() ? "1" : text;
}

std::string Spread::label() const {
  std::string variants;
  if (tensor != TensorExchange::plain && tensors() > 1) variants = name(tensor);
  if (sequence != SequenceExchange::gather && degree(AxisKind::sp) > 1) {
    variants += fmt::format("{}{}", variants.empty() ? "" : ", ", name(sequence));
  }
  return variants.empty() ? print() : fmt::format("{} ({})", print(), variants);
}

std::string why_impossible(const Setting& setting, const Spread& spread) {
  const int data = spread.data();
  if (setting.batch % static_cast<std::size_t>(data) != 0) {
    return fmt::format("dp={} doesn't divide --batch {}; try --batch {}", data, setting.batch,
                       (setting.batch / static_cast<std::size_t>(data) + 1) * static_cast<std::size_t>(data));
  }
  const bool heads_over_sequence = spread.degree(AxisKind::sp) > 1 && spread.sequence == SequenceExchange::ulysses;
  const int over_heads =
      spread.tensors() * spread.degree(AxisKind::tsp) * (heads_over_sequence ? spread.degree(AxisKind::sp) : 1);
  try {
    const HeadCut heads(setting.model.query_heads, setting.model.kv_heads, over_heads);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

Setting replica_setting(const Setting& setting, const Spread& spread) {
  Setting replica = setting;
  replica.batch /= static_cast<std::size_t>(spread.data());
  return replica;
}

HeadGrid::HeadGrid(const ModelConfig& model, int tensors, int parts)
    : per_tensor_(model.query_heads / static_cast<std::size_t>(tensors)),
      per_rank_(per_tensor_ / static_cast<std::size_t>(parts)),
      g_(model.heads_per_kv_head()),
      tensors_(tensors) {}

HeadRange HeadGrid::queries(int t, int p) const {
  return {static_cast<std::size_t>(t) * per_tensor_ + static_cast<std::size_t>(p) * per_rank_, per_rank_};
}

HeadRange HeadGrid::kv_read(int t, int p) const {
  const HeadRange mine = queries(t, p);
  if (mine.count == 0) return {mine.first / g_, 0};
  const std::size_t first = mine.first / g_;
  return {first, (mine.end() - 1) / g_ + 1 - first};
}

std::size_t HeadGrid::kv_owned(int t, int p) const {
  const HeadRange mine = queries(t, p);
  // At the tensor rank's first query head a head may have begun on the tensor rank before: the first part owns its copy.
  const std::size_t first = p == 0 ? mine.first / g_ : (mine.first + g_ - 1) / g_;
  return (mine.end() + g_ - 1) / g_ - first;
}

std::size_t HeadGrid::kv_read_by(int t) const {
  const std::size_t begin = static_cast<std::size_t>(t) * per_tensor_;
  return (begin + per_tensor_ - 1) / g_ + 1 - begin / g_;
}

std::size_t HeadGrid::kv_read_by_all() const {
  std::size_t sum = 0;
  for (int t = 0; t < tensors_; ++t) sum += kv_read_by(t);
  return sum;
}

}  // namespace tsp::theory
