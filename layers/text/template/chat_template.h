// Chat templates: how a conversation becomes the text that a model was trained to continue. They are written in Jinja, of which
// layers/text/template/ has what the hub's templates use, with transformers' settings and globals.
#pragma once

#include "layers/text/template/value.h"

#include <nlohmann/json_fwd.hpp>

#include <ctime>
#include <memory>
#include <string>
#include <string_view>

namespace tsprun::detail::text {

/// A template. It doesn't change; threads may share it.
class ChatTemplate {
 public:
  /// Parses a template; `where` names it in messages. Throws Error(refused) with the line, by name for what isn't supported,
  /// and for more than 1 MiB.
  static ChatTemplate parse(std::string_view source, std::string where);

  /// Returns the text for the variables of an object: `messages`, `add_generation_prompt`, `bos_token` … All texts in it must be
  /// UTF-8. `now`: what strftime_now() tells, in local time. Throws Error(refused): the template refuses the conversation in its
  /// own words, does what isn't supported or what fails, or takes more than about a quarter of a second or
  /// of a GiB, counted in steps, texts and items.
  std::string render(const nlohmann::ordered_json& variables, std::time_t now) const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace tsprun::detail::text
