#include "launcher/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

/// Options that may differ between nodes: what identifies a node, and what it prints and writes. Ranks, layout and nodes are
/// compared as validated, not as typed.
constexpr std::array<std::string_view, 23> kOwn = {
    "--help",        "--version", "--ranks",  "--layout",  "--nodes",        "--nnodes", "--node-rank", "--rendezvous",
    "--secret-file", "--rdma",    "--bind",   "--threads", "--mem-per-rank", "--json",   "--quiet",     "--log-level",
    "--no-prefix",   "--save",    "--resume", "--logits",  "--output",       "--csv",    "--audit"};
constexpr char kBetween = '\n';

bool contains(const auto& names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

void take(const CLI::App& app, Agreement& into) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string name = fmt::format("--{}", option->get_lnames().front());
    if (contains(kOwn, name)) continue;
    std::string value;
    for (const std::string& each : option->results()) {
      if (!value.empty()) value += kBetween;
      value += each;
    }
    if (option->count() == 0) value = option->get_default_str();
    // The nodes' paths may differ, but their ranks write in turn: all of them or none.
    if (name == "--trace" && option->count() > 0) value = "FILE";
    if (!value.empty()) into[name] = value;
  }
}

std::string shown(const std::string& value) {
  std::string text = value;
  std::replace(text.begin(), text.end(), kBetween, ' ');
  return text;
}

/// Returns advice on a difference that isn't an option's; empty: there is none.
std::string_view advice(std::string_view name) {
  if (name == "build") return " (start the same program on all nodes)";
  if (name == "kernels") return " (set TSP_KERNELS to the lower on all nodes)";
  if (name == "OpenBLAS") return " (install the same on all nodes; TSP_KERNELS chooses its core)";
  return {};
}

}  // namespace

Agreement typed_options(const CLI::App& app, const CLI::App& command) {
  Agreement options;
  take(app, options);
  take(command, options);
  return options;
}

std::string difference(const Agreement& theirs, int their_node, const Agreement& mine, int my_node) {
  std::set<std::string> names;
  for (const auto& [name, value] : theirs) names.insert(name);
  for (const auto& [name, value] : mine) names.insert(name);
  std::string text;
  for (const std::string& name : names) {
    const auto there = theirs.find(name);
    const auto here = mine.find(name);
    if (there != theirs.end() && here != mine.end() && there->second == here->second) continue;
    if (!text.empty()) text += "; ";
    if (there == theirs.end()) text += fmt::format("{} {} on node {} only", name, shown(here->second), my_node);
    else if (here == mine.end()) text += fmt::format("{} {} on node {} only", name, shown(there->second), their_node);
    else
      text +=
          fmt::format("{} {} on node {}, {} on node {}", name, shown(there->second), their_node, shown(here->second), my_node);
    text += advice(name);
  }
  return text;
}

}  // namespace tsprun::detail::launcher
