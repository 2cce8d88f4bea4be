#include "launcher/layout.h"

#include "launcher/suggest.h"
#include "layers/layout/spread.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::launcher {

namespace {

constexpr std::string_view kForm = "write axis=degree,… with axes dp, tp, sp, tsp, zero3, such as tsp=4 or dp=2,tp=2,sp=2";
constexpr int kLargestProduct = 1 << 20;

/// Other frameworks' names of the axes.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kOtherNames = {{{"ddp", "dp"},
                                                                                       {"data", "dp"},
                                                                                       {"tensor", "tp"},
                                                                                       {"mp", "tp"},
                                                                                       {"cp", "sp"},
                                                                                       {"context", "sp"},
                                                                                       {"sequence", "sp"},
                                                                                       {"fsdp", "zero3"},
                                                                                       {"zero", "zero3"}}};

/// Returns "; did you mean tsp?", or an empty text.
std::string meant_axis(std::string_view typed) {
  const auto other = std::find_if(kOtherNames.begin(), kOtherNames.end(), [&](const auto& each) { return each.first == typed; });
  if (other != kOtherNames.end()) return fmt::format("; did you mean {}?", other->second);
  return did_you_mean(typed, std::vector<std::string>{"dp", "tp", "sp", "tsp", "zero3"});
}

[[noreturn]] void refuse_layout(const std::string& text, const std::string& why) {
  throw Error(Cause::refused, fmt::format("--layout {}: {}", text, why));
}

Axis parse_axis(const std::string& whole, std::string_view part) {
  const std::size_t equals = part.find('=');
  if (equals == std::string_view::npos) refuse_layout(whole, fmt::format("'{}' has no '='; {}", part, kForm));
  const std::string_view axis = part.substr(0, equals);
  const std::string_view degree = part.substr(equals + 1);
  if (!theory::axis_kind(axis)) {
    refuse_layout(whole, fmt::format("there is no axis '{}'{}; {}", axis, meant_axis(axis), kForm));
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(degree.data(), degree.data() + degree.size(), value);
  if (error != std::errc{} || end != degree.data() + degree.size()) {
    refuse_layout(whole, fmt::format("'{}' is no degree for {}; try {}=2", degree, axis, axis));
  }
  if (value < 1 || value > kLargestProduct) {
    const std::int64_t nearest = value < 1 ? 1 : kLargestProduct;
    refuse_layout(whole, fmt::format("degree {} of {} is out of range; try {}={}", value, axis, axis, nearest));
  }
  return {std::string(axis), static_cast<int>(value)};
}

void check_combination(const std::string& text, const Layout& layout) {
  for (std::size_t i = 0; i < layout.axes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (layout.axes[i].name == layout.axes[j].name) {
        refuse_layout(text,
                      fmt::format("axis {} comes twice; give it once, with the product of both degrees", layout.axes[i].name));
      }
    }
    if (layout.axes[i].name == "dp" && i != 0) refuse_layout(text, "dp must stand first: write dp before the other axes");
  }
  if (layout.has("zero3") && (layout.has("tp") || layout.has("sp") || layout.has("tsp"))) {
    refuse_layout(text, "zero3 can't be mixed with tp, sp or tsp; try zero3 alone or after dp");
  }
  if (layout.has("tsp") && layout.has("sp")) {
    refuse_layout(text, "tsp holds the sequence already and can't be mixed with sp; try tsp alone, or tp with tsp");
  }
}

}  // namespace

int Layout::product() const {
  std::int64_t product = 1;
  for (const Axis& axis : axes) product *= axis.degree;
  return static_cast<int>(product);
}

int Layout::degree(std::string_view axis) const {
  for (const Axis& each : axes) {
    if (each.name == axis) return each.degree;
  }
  return 1;
}

bool Layout::has(std::string_view axis) const {
  return std::any_of(axes.begin(), axes.end(), [&](const Axis& each) { return each.name == axis; });
}

std::string Layout::print() const {
  std::vector<std::string> parts;
  for (const Axis& axis : axes) parts.push_back(fmt::format("{}={}", axis.name, axis.degree));
  return fmt::format("{}", fmt::join(parts, ","));
}

Layout parse_layout(const std::string& text) {
  Layout layout;
  std::string_view rest = text;
  std::int64_t product = 1;
  while (true) {
    const std::size_t comma = rest.find(',');
    layout.axes.push_back(parse_axis(text, rest.substr(0, comma)));
    product *= layout.axes.back().degree;
    if (product > kLargestProduct)
      refuse_layout(text, fmt::format("more than {} ranks; choose smaller degrees", kLargestProduct));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  check_combination(text, layout);
  return layout;
}

Layout default_layout(int ranks) { return Layout{{Axis{"tsp", ranks}}}; }

}  // namespace tsprun::launcher
