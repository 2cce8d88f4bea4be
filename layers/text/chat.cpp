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
constexpr std::uint64_t kLargestMap = std::uint64_t{1} << 20;
constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kConfigFile = "tokenizer_config.json";
constexpr const char* kSpecialsFile = "special_tokens_map.json";

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

/// Returns what a JSON file holds, and nothing if there is none. Throws Error(refused).
nlohmann::json object_of(const std::filesystem::path& path, std::uint64_t most, std::string_view what) {
  if (!file::exists(path)) return nlohmann::json::object();
  nlohmann::json object = parse_json(file::read_text(path, most, what), path.string());
  if (!object.is_object()) throw Error(Cause::refused, fmt::format("{}: expected an object", path.string()));
  return object;
}

/// Returns the text of a special token: a text, or an object with a text as `content`.
std::optional<std::string> token_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) return {};
  const auto content = value.find("content");
  if (content == value.end() || !content->is_string()) return {};
  return content->get<std::string>();
}

/// Adds the special tokens that a template may name. Fields of another kind, such as "add_bos_token", are no tokens.
void add_specials(const nlohmann::json& config, nlohmann::ordered_json& to) {
  for (const auto& [name, value] : config.items()) {
    if (!std::string_view(name).ends_with("_token")) continue;
    if (const auto text = token_of(value)) to[name] = *text;
  }
}

/// Adds the special tokens of special_tokens_map.json, in the place of others: null is none. Throws Error(refused).
void replace_specials(const std::filesystem::path& path, nlohmann::ordered_json& to) {
  const nlohmann::json map = object_of(path, kLargestMap, "a special_tokens_map.json");
  for (const auto& [name, value] : map.items()) {
    if (!std::string_view(name).ends_with("_token")) continue;
    const auto text = token_of(value);
    if (!text && !value.is_null()) {
      throw Error(Cause::refused,
                  fmt::format("{}: field \"{}\": expected a text, an object with a text as content, or null; found {}",
                              path.string(), shown(name), shown_value(value)));
    }
    if (text) to[name] = *text;
    else to.erase(name);
  }
}

}  // namespace

ChatFormat ChatFormat::load(const std::filesystem::path& folder) {
  const nlohmann::json config = object_of(folder / kConfigFile, kLargestFormat, "a tokenizer_config.json");
  std::string where = (folder / kTemplateFile).string();
  std::optional<std::string> source;
  if (file::exists(folder / kTemplateFile)) {
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
  nlohmann::ordered_json specials = nlohmann::ordered_json::object();
  add_specials(config, specials);
  // transformers reads the older file only where the newer one doesn't list the added tokens.
  if (!config.contains("added_tokens_decoder")) replace_specials(folder / kSpecialsFile, specials);
  return ChatFormat(ChatTemplate::parse(*source, std::move(where)), std::move(specials));
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
