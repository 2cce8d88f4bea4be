// Answers questions to a layout from its list of axes, and prints it.
#include "layers/layout/layout.h"

#include <fmt/format.h>

#include <algorithm>

namespace tsprun::detail {

namespace {

/// Returns whether an axis of several ranks has a variant of this kind.
bool exchanges_so(const Layout& layout, bool Variant::*kind) {
  return std::ranges::any_of(layout.axes, [&](const Axis& axis) {
    const Variant* variant = variant_of(axis);
    return axis.degree > 1 && variant != nullptr && variant->*kind;
  });
}

}  // namespace

Layout Layout::canonical() const {
  Layout result = *this;
  std::erase_if(result.axes, [](const Axis& axis) { return axis.degree == 1; });
  return result;
}

Layout Layout::with(AxisKind kind, std::size_t variant) const {
  Layout result = *this;
  for (Axis& axis : result.axes) {
    if (axis.kind == kind && axis.degree > 1) axis.variant = variant;
  }
  return result;
}

Layout Layout::plain() const {
  Layout result = *this;
  for (Axis& axis : result.axes) axis.variant = 0;
  return result;
}

Layout Layout::without(Cut cut) const {
  Layout result = *this;
  std::erase_if(result.axes, [&](const Axis& axis) {
    const Cut of_axis = row_of(axis.kind).cuts;
    return of_axis == cut || (cut == Cut::batch && of_axis == Cut::batch_again);
  });
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

std::size_t Layout::variant(AxisKind kind) const {
  for (const Axis& axis : axes) {
    if (axis.kind == kind) return axis.variant;
  }
  return 0;
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

AxisKind Layout::axis_that_cuts(Cut cut) const {
  for (const Axis& axis : axes) {
    if (row_of(axis.kind).cuts == cut) return axis.kind;
  }
  return std::ranges::find(kAxes, cut, &AxisRow::cuts)->kind;
}

AxisKind Layout::token_axis() const {
  // Where no axis of the replica has several ranks, its names choose.
  const bool by_name = ranks() == data() * stages();
  AxisKind found = row_of(data_axis()).tokens_by;
  for (const Axis& axis : axes) {
    const AxisRow& row = row_of(axis.kind);
    if (is_outside_of_blocks(row.cuts) || (axis.degree == 1 && !by_name)) continue;
    if (cuts_tokens(row.cuts)) return axis.kind;
    found = row.tokens_by;
  }
  return found;
}

std::vector<AxisKind> Layout::axes_of_tokens() const {
  return slices_tokens() ? std::vector{token_axis(), tensor_axis()} : std::vector{token_axis()};
}

std::vector<AxisKind> Layout::axes_of_vocabulary() const {
  return cuts_vocabulary_over_tensor() ? std::vector{tensor_axis()} : axes_of_tokens();
}

std::vector<AxisKind> Layout::axes_of_replica() const {
  std::vector<AxisKind> kinds;
  for (const Axis& axis : axes) {
    if (!cuts_batch(row_of(axis.kind).cuts)) kinds.push_back(axis.kind);
  }
  return kinds;
}

std::vector<AxisKind> Layout::axes_of_data() const {
  const AxisKind again = axis_that_cuts(Cut::batch_again);
  return degree(again) > 1 ? std::vector{data_axis(), again} : std::vector{data_axis()};
}

AxisKind Layout::sharing_axis() const { return axes_of_data().back(); }

int Layout::data_place(int rank) const {
  int number = 0;
  for (const AxisKind axis : axes_of_data()) number = number * degree(axis) + place(axis, rank);
  return number;
}

PipelineStage Layout::stage(std::size_t layers, int rank) const {
  const auto place_on_axis = static_cast<std::size_t>(place(stage_axis(), rank));
  return PipelineStage::of(layers, static_cast<std::size_t>(stages()), place_on_axis);
}

bool Layout::slices_tokens() const { return exchanges_so(*this, &Variant::slices_tokens); }
bool Layout::shares_states() const { return exchanges_so(*this, &Variant::shares_states); }
bool Layout::shares_weights() const { return exchanges_so(*this, &Variant::shares_weights); }
bool Layout::exchanges_heads() const { return exchanges_so(*this, &Variant::exchanges_heads); }

std::string Layout::print_data() const {
  Layout data = *this;
  std::erase_if(data.axes, [](const Axis& axis) { return !cuts_batch(row_of(axis.kind).cuts); });
  return data.print();
}

std::string Layout::print() const {
  std::string text;
  for (const Axis& axis : axes) text += fmt::format("{}{}={}", text.empty() ? "" : ",", name(axis.kind), axis.degree);
  return text.empty() ? "1" : text;
}

std::string Layout::label() const {
  std::string variants;
  for (const AxisRow& row : kAxes) {
    if (variant(row.kind) != 0) variants += fmt::format("{}{}", variants.empty() ? "" : ", ", variant_name(*this, row));
  }
  return variants.empty() ? print() : fmt::format("{} ({})", print(), variants);
}

}  // namespace tsprun::detail
