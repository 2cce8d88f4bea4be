// Reads prompts, and checks them against the model.
#include "launcher/commands/prompts.h"

#include "launcher/refuse.h"
#include "layers/io/file.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

constexpr std::uint64_t kLargestPrompts = std::uint64_t{64} << 20;

void check_vocabulary(const Prompt& prompt, const ModelCommandOptions& model) {
  for (const Token id : prompt.ids) {
    if (static_cast<std::size_t>(id) >= model.shape.vocabulary) {
      refuse(fmt::format("{}: token {} isn't below the vocabulary's {} ids", prompt.name, id, model.shape.vocabulary));
    }
  }
}

}  // namespace

bool prompt_is_file(const std::string& prompt) {
  const std::filesystem::path path(prompt);
  std::error_code error;  // such as a text too long for a name
  // Files of ids in a form that isn't read are none of the user's text either; reading them refuses them.
  return (names_ids(path) || names_other_numbers(path)) && std::filesystem::is_regular_file(path, error);
}

Prompt read_prompt(const std::string& prompt, const ModelCommandOptions& model, const ModelText& text) {
  const std::filesystem::path path(prompt);
  Prompt read{.name = "--prompt", .ids = {}};
  if (prompt_is_file(prompt)) {
    const TokenStream stream({path}, 1);
    stream.check_vocabulary(model.shape.vocabulary);
    read.ids.resize(static_cast<std::size_t>(stream.size()));
    stream.read(0, read.ids);
  } else {
    if (names_ids(path)) spdlog::warn("--prompt {}: there is no such file; it is taken as text", prompt);
    read.ids = text.ids(prompt, "--prompt");
  }
  if (read.ids.empty()) refuse("--prompt '': a text begins with at least one token; try --prompt 'The '");
  check_vocabulary(read, model);
  return read;
}

std::vector<Prompt> read_prompts(const std::filesystem::path& file, const ModelCommandOptions& model, const ModelText& reader) {
  // Never ids, whatever the file is called.
  const posix::UniqueFd opened = file::open_to_read(file);
  refuse_other_numbers(file);
  const std::uint64_t bytes = file::size(opened, file);
  if (bytes > kLargestPrompts)
    refuse(fmt::format("--prompts {}: {} bytes; at most {} work", file.string(), bytes, kLargestPrompts));
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file::read(opened, file, 0, std::as_writable_bytes(std::span(text)));
  std::vector<Prompt> prompts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::string name = fmt::format("--prompts {}, line {}", file.string(), prompts.size() + 1);
    if (line.empty()) refuse(fmt::format("{} is empty: a text begins with at least one byte", name));
    prompts.push_back({.name = name, .ids = reader.ids(line, name)});
    check_vocabulary(prompts.back(), model);
    at = end + 1;
  }
  if (prompts.empty()) refuse(fmt::format("--prompts {}: the file is empty; it has a prompt a line", file.string()));
  return prompts;
}

void check_room(std::span<const Prompt> prompts, std::size_t tokens, std::size_t positions) {
  for (const Prompt& prompt : prompts) {
    if (prompt.ids.size() >= positions) {
      refuse(fmt::format("{}: {} tokens leave no room for more: the model has {} positions", prompt.name, prompt.ids.size(),
                         positions));
    }
    if (prompt.ids.size() + tokens > positions) {
      refuse(fmt::format("{}: {} tokens and {} more are over the model's {} positions; try --tokens {}", prompt.name,
                         prompt.ids.size(), tokens, positions, positions - prompt.ids.size()));
    }
  }
}

}  // namespace tsprun::detail::launcher
