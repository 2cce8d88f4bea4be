// The grammar of --layout. What it accepts, and the words with which it refuses, follow from the table of axes.
#include "layers/layout/layout.h"
#include "transport/cause.h"
#include "transport/number.h"
#include "transport/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tsprun::detail {

namespace {

constexpr int kLargestProduct = 1 << 20;

std::vector<std::string> axis_names() {
  std::vector<std::string> names;
  for (const AxisRow& row : kAxes) names.emplace_back(row.name);
  return names;
}

std::string form() {
  return fmt::format("write axis=degree,… with axes {}, such as tsp=4 or dp=2,tp=2,sp=2", fmt::join(axis_names(), ", "));
}

/// Returns " (did you mean tsp?)", what is nearest to an axis that isn't here, or an empty text.
std::string meant_axis(std::string_view typed) {
  if (typed == "fsdp") return " (dp with --dp zero3 is what FSDP does)";
  for (const AxisRow& row : kAxes) {
    if (std::ranges::count(row.elsewhere, typed) != 0) return fmt::format(" (did you mean {}?)", row.name);
  }
  return did_you_mean(typed, axis_names());
}

/// Reads a text part by part.
struct Reader {
  const std::string& text;
  std::string_view where;

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(Cause::refused, fmt::format("{} {}: {}", where, text, why));
  }

  Axis axis(std::string_view part) const {
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) refuse(fmt::format("'{}' has no '='; {}", part, form()));
    const std::string_view axis = part.substr(0, equals);
    const std::string_view degree = part.substr(equals + 1);
    const auto* const row = std::ranges::find(kAxes, axis, &AxisRow::name);
    if (row == kAxes.end()) refuse(fmt::format("there is no axis '{}'{}; {}", axis, meant_axis(axis), form()));
    const std::optional<std::int64_t> value = number_from<std::int64_t>(degree);
    if (!value) refuse(fmt::format("'{}' is no degree for {}; try {}=2", degree, axis, axis));
    if (*value < 1 || *value > kLargestProduct) {
      const std::int64_t nearest = *value < 1 ? 1 : kLargestProduct;
      refuse(fmt::format("degree {} of {} is out of range; try {}={}", *value, axis, axis, nearest));
    }
    return {row->kind, static_cast<int>(*value)};
  }
};

}  // namespace

Layout Layout::parse(const std::string& text, std::string_view where) {
  const Reader reader{text, where};
  Layout layout;
  std::string_view rest = text;
  std::int64_t product = 1;
  while (true) {
    const std::size_t comma = rest.find(',');
    layout.axes.push_back(reader.axis(rest.substr(0, comma)));
    product *= layout.axes.back().degree;
    if (product > kLargestProduct) {
      reader.refuse(fmt::format("more than {} ranks; choose smaller degrees", kLargestProduct));
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (const std::string why = layout.why_not(); !why.empty()) reader.refuse(why);
  return layout;
}

std::string Layout::why_not() const {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const AxisRow& row = row_of(axes[i].kind);
    const auto same = [&](const Axis& other) { return other.kind == row.kind; };
    if (std::any_of(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(i), same)) {
      return fmt::format("axis {} comes twice; give it once, with the product of both degrees", row.name);
    }
    const auto stands_behind = [&](const Axis& other) {
      return !row_of(other.kind).foremost || index_of(other.kind) > index_of(row.kind);
    };
    if (row.foremost && std::any_of(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(i), stands_behind)) {
      std::vector<std::string_view> before;  // those of the foremost that stand before it
      for (std::size_t other = 0; other < index_of(row.kind); ++other) before.push_back(kAxes[other].name);
      return fmt::format("{0} must stand first{1}: write {0} before the other axes", row.name,
                         before.empty() ? "" : fmt::format(", behind {} alone", fmt::join(before, " and ")));
    }
    if (row.cuts == Cut::batch_again && axes[i].degree > 1 && degree(data_axis()) == 1) {
      return fmt::format("{0} cuts each rank of {1} again, and there are none; try {1}={2}", row.name, name(data_axis()),
                         axes[i].degree);
    }
  }
  for (auto row = kAxes.rbegin(); row != kAxes.rend(); ++row) {
    if (has(row->kind) && std::ranges::any_of(row->never_with, [&](AxisKind other) { return has(other); })) {
      return std::string(row->why_never);
    }
  }
  for (std::size_t i = 0; i < axes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Cut cut = row_of(axes[i].kind).cuts;
      const Cut other = row_of(axes[j].kind).cuts;
      if (cut == other || (cuts_tokens(cut) && cuts_tokens(other))) {
        return fmt::format("{} and {} cut the same; try one of them, with the product of both degrees", name(axes[j].kind),
                           name(axes[i].kind));
      }
    }
  }
  for (const Axis& axis : axes) {
    const std::string_view why = row_of(axis.kind).why_data_shares_none;
    if (axis.degree == 1 || why.empty() || !shares_weights()) continue;
    return fmt::format("{} beside {} ({}): {}", name(axis.kind), name(data_axis()), variant_name(*this, row_of(data_axis())),
                       why);
  }
  return {};
}

}  // namespace tsprun::detail
