#include "launcher/agreement.h"

#include "layers/model/digest.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <set>
#include <string_view>

namespace tsp::launcher {

namespace {

/// What may differ: who and where a node is, what it prints and writes. Ranks, layout and nodes are compared as validated.
constexpr std::array<std::string_view, 24> kOwn = {
    "--help",        "--version",   "--ranks", "--layout",  "--nodes",        "--nnodes", "--node-rank", "--rendezvous",
    "--secret-file", "--rdma",      "--bind",  "--threads", "--mem-per-rank", "--trace",  "--json",      "--quiet",
    "--log-level",   "--no-prefix", "--save",  "--resume",  "--logits",       "--output", "--csv",       "--audit"};
/// Files and folders that are read.
constexpr std::array<std::string_view, 5> kFiles = {"--data", "--config", "--model", "--weights", "--input"};
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
    if (!value.empty()) into[name] = value;
  }
}

/// The digest of a file's content; the text itself where there is no such file: the name of a built-in model.
std::string content(const std::string& name) {
  std::error_code error;
  std::filesystem::path path = name;
  if (std::filesystem::is_directory(path, error)) path /= "config.json";
  if (!std::filesystem::is_regular_file(path, error)) return name;
  const posix::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw system_error(Cause::refused, path.string(), errno);
  return fmt::format("(content {:.12})", hexadecimal(digest_file(file, path, std::filesystem::file_size(path))));
}

std::string shown(const std::string& value) {
  std::string text = value;
  std::replace(text.begin(), text.end(), kBetween, ' ');
  return text;
}

}  // namespace

Agreement typed_options(const CLI::App& app, const CLI::App& command) {
  Agreement options;
  take(app, options);
  take(command, options);
  return options;
}

Agreement with_contents(Agreement options) {
  for (const std::string_view name : kFiles) {
    const auto found = options.find(std::string(name));
    if (found == options.end()) continue;
    std::string contents;
    for (std::string_view rest = found->second; !rest.empty();) {
      const std::size_t end = std::min(rest.find(kBetween), rest.size());
      if (!contents.empty()) contents += kBetween;
      contents += content(std::string(rest.substr(0, end)));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    found->second = contents;
  }
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
  }
  return text;
}

}  // namespace tsp::launcher
