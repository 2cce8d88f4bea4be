// How a model's folder says that conversations become text: its chat template and the special tokens that it names.
#pragma once

#include "layers/text/template/chat_template.h"

#include <nlohmann/json.hpp>

#include <ctime>
#include <filesystem>
#include <string>

namespace tsprun::detail::text {

/// The form of a model's conversations.
class ChatFormat {
 public:
  /// Reads chat_template.jinja or else `chat_template` of tokenizer_config.json, and from the latter the special tokens; as
  /// transformers does, those of special_tokens_map.json go first, unless tokenizer_config.json has `added_tokens_decoder`.
  /// Throws Error(refused): there is no template, or it, or a file, can't be read.
  static ChatFormat load(const std::filesystem::path& folder);

  /// Returns the text that ends where the assistant's next answer begins. `messages`: a list of {"role", "content"}. `now` as for
  /// ChatTemplate::render(). Throws Error(refused) as that does.
  std::string render(const nlohmann::ordered_json& messages, std::time_t now) const;

  /// Returns the text of a special token, "eos_token"; empty if the folder names none.
  std::string special(const std::string& name) const;

 private:
  ChatFormat(ChatTemplate of, nlohmann::ordered_json specials) : template_(std::move(of)), specials_(std::move(specials)) {}
  ChatTemplate template_;
  nlohmann::ordered_json specials_;
};

}  // namespace tsprun::detail::text
