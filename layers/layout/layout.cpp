// Answers questions to a layout from its list of axes, and prints it.
#include "layers/layout/layout.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail {

Layout Layout::canonical() const {
  Layout result = *this;
  std::erase_if(result.axes, [](const Axis& axis) { return axis.degree == 1; });
  return result;
}

Layout Layout::with(TensorExchange exchange) const {
  Layout result = *this;
  if (tensor() > 1) result.tensor_exchange = exchange;
  return result;
}

Layout Layout::with(SequenceExchange exchange) const {
  Layout result = *this;
  if (degree(AxisKind::sp) > 1) result.sequence_exchange = exchange;
  return result;
}

bool Layout::has(AxisKind kind) const {
  return std::ranges::any_of(axes, [&](const Axis& axis) { return axis.kind == kind; });
}

int Layout::degree(AxisKind kind) const {
  for (const Axis& axis : axes) {
    if (axis.kind == kind) return axis.degree;
  }
  return 1;
}

int Layout::ranks() const {
  int product = 1;
  for (const Axis& axis : axes) product *= axis.degree;
  return product;
}

int Layout::stride(AxisKind kind) const {
  int stride = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend() && axis->kind != kind; ++axis) stride *= axis->degree;
  return stride;
}

Scheme Layout::scheme() const {
  // Where no axis of the replica has several ranks, its names choose.
  const bool by_name = ranks() == data();
  Scheme found = Scheme::tsp;
  for (const Axis& axis : axes) {
    const AxisRow& row = row_of(axis.kind);
    if (row.cuts == Cut::batch || (axis.degree == 1 && !by_name)) continue;
    if (row.cuts == Cut::tokens_and_weights) return row.scheme;
    found = row.scheme;
  }
  return found;
}

AxisKind Layout::token_axis() const {
  const auto cuts_tokens = [&](const AxisRow& row) {
    return (row.cuts == Cut::tokens || row.cuts == Cut::tokens_and_weights) && row.scheme == scheme();
  };
  return std::ranges::find_if(kAxes, cuts_tokens)->kind;
}

std::string Layout::print() const {
  std::string text;
  for (const Axis& axis : axes) text += fmt::format("{}{}={}", text.empty() ? "" : ",", name(axis.kind), axis.degree);
  return text.empty() ? "1" : text;
}

std::string Layout::label() const {
  std::string variants;
  if (slices_tokens()) variants = name(tensor_exchange);
  if (sequence_exchange != SequenceExchange::gather && degree(AxisKind::sp) > 1) {
    variants += fmt::format("{}{}", variants.empty() ? "" : ", ", name(sequence_exchange));
  }
  return variants.empty() ? print() : fmt::format("{} ({})", print(), variants);
}

}  // namespace tsprun::detail
