// Collects options from the tables, and words the first difference between two nodes.
#include "launcher/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

constexpr char kBetween = '\n';

void take(const OptionTable& table, Agreement& into) {
  for (const OptionRow& row : table.rows()) {
    if (row.long_name().empty() || row.is(Trait::per_node)) continue;
    const std::vector<std::string> typed = row.typed();
    std::string value = fmt::format("{}", fmt::join(typed, std::string_view(&kBetween, 1)));
    if (typed.empty()) value = row.usual;
    else if (row.is(Trait::all_or_none)) value = row.metavar;
    else if (row.spelled) value = row.spelled(value);
    if (!value.empty()) into[row.long_name()] = value;
  }
}

std::string in_a_line(const std::string& value) {
  std::string text = value;
  std::replace(text.begin(), text.end(), kBetween, ' ');
  return text;
}

/// Returns advice on a difference that isn't an option's; empty: there is none.
std::string_view advice(std::string_view name) {
  if (name == "build") return " (start the same program on all nodes)";
  if (name == "kernels") return " (set TSP_KERNELS to the lower on all nodes)";
  if (name == "gemm") return " (choose --gemm tsprun, or install the same OpenBLAS on all nodes)";
  return {};
}

}  // namespace

Agreement typed_options(const OptionTable& global, const OptionTable& command) {
  Agreement options;
  take(global, options);
  take(command, options);
  return options;
}

std::string difference(const Agreement& theirs, int their_node, const Agreement& mine, int my_node) {
  Agreement all = theirs;
  all.insert(mine.begin(), mine.end());
  std::string text;
  for (const auto& [name, value] : all) {
    const auto there = theirs.find(name);
    const auto here = mine.find(name);
    if (there != theirs.end() && here != mine.end() && there->second == here->second) continue;
    if (!text.empty()) text += "; ";
    if (there == theirs.end()) text += fmt::format("{} {} on node {} only", name, in_a_line(here->second), my_node);
    else if (here == mine.end()) text += fmt::format("{} {} on node {} only", name, in_a_line(there->second), their_node);
    else
      text += fmt::format("{} {} on node {}, {} on node {}", name, in_a_line(there->second), their_node, in_a_line(here->second),
                          my_node);
    text += advice(name);
  }
  return text;
}

}  // namespace tsprun::detail::launcher
