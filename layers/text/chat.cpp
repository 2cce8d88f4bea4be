// Finds the template, and gives it the variables that transformers gives.
#include "layers/text/chat.h"

#include "layers/io/file.h"
#include "layers/io/json_text.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace tsprun::detail::text {

namespace {

constexpr std::uint64_t kLargestFormat = std::uint64_t{64} << 20;
constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kConfigFile = "tokenizer_config.json";

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

/// Returns the template of tokenizer_config.json: a text, or of several with names the one called "default".
std::optional<std::string> named_template(const nlohmann::json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return {};
  for (const nlohmann::json& each : *found) {
    if (!each.is_object() || each.value("name", nlohmann::json()) != "default") continue;
    if (const auto text = each.find("template"); text != each.end() && text->is_string()) return text->get<std::string>();
  }
  return {};
}

/// Returns the special tokens that a template may name: texts, or objects with a text as `content`.
nlohmann::ordered_json specials_of(const nlohmann::json& config) {
  nlohmann::ordered_json specials = nlohmann::ordered_json::object();
  for (const auto& [name, value] : config.items()) {
    if (!std::string_view(name).ends_with("_token")) continue;
    if (value.is_string()) specials[name] = value.get<std::string>();
    else if (value.is_object() && value.contains("content") && value["content"].is_string())
      specials[name] = value["content"].get<std::string>();
  }
  return specials;
}

}  // namespace

ChatFormat ChatFormat::load(const std::filesystem::path& folder) {
  nlohmann::json config = nlohmann::json::object();
  if (is_there(folder / kConfigFile))
    config = parse_json(file::read_text(folder / kConfigFile, kLargestFormat, "a tokenizer_config.json"),
                        (folder / kConfigFile).string());
  if (!config.is_object()) throw Error(Cause::refused, fmt::format("{}: expected an object", (folder / kConfigFile).string()));
  std::string where = (folder / kTemplateFile).string();
  std::optional<std::string> source;
  if (is_there(folder / kTemplateFile)) {
    source = file::read_text(folder / kTemplateFile, kLargestFormat, "a chat template");
  } else {
    source = named_template(config);
    where = fmt::format("{}: chat_template", (folder / kConfigFile).string());
  }
  if (!source) {
    throw Error(Cause::refused,
                fmt::format("{}: the model has no chat template ({}, or chat_template in {}), so it wasn't made for "
                            "conversations; `tsprun generate --prompt TEXT` goes on with any text",
                            folder.string(), kTemplateFile, kConfigFile));
  }
  return ChatFormat(ChatTemplate::parse(*source, std::move(where)), specials_of(config));
}

std::string ChatFormat::render(const nlohmann::ordered_json& messages, std::time_t now) const {
  nlohmann::ordered_json variables = specials_;
  variables["messages"] = messages;
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = true;
  return template_.render(variables, now);
}

std::string ChatFormat::special(const std::string& name) const { return specials_.value(name, std::string()); }

}  // namespace tsprun::detail::text
