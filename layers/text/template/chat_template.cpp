// Puts the place of a template's trouble into words.
#include "layers/text/template/chat_template.h"

#include "layers/io/json_text.h"
#include "layers/text/characters.h"
#include "layers/text/template/evaluator.h"
#include "layers/text/template/lexer.h"
#include "layers/text/template/syntax.h"
#include "layers/text/template/texts.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tsprun::detail::text {

namespace {

constexpr std::size_t kLongest = std::size_t{1} << 20;
constexpr std::size_t kLongestMessage = 1000;  // of a template; ours are shorter

}  // namespace

struct ChatTemplate::Parsed {
  std::string where;
  jinja::Body body;
};

ChatTemplate ChatTemplate::parse(std::string_view source, std::string where) {
  if (source.size() > kLongest)
    throw Error(Cause::refused, fmt::format("{}: {} bytes; a template has at most {}", where, source.size(), kLongest));
  std::size_t wrong = 0;
  if (const std::size_t good = utf8_prefix(source, wrong); good != source.size())
    throw Error(Cause::refused, fmt::format("{}: byte {} isn't UTF-8", where, good));
  try {
    return ChatTemplate(std::make_shared<const Parsed>(Parsed{.where = where, .body = jinja::parse(source)}));
  } catch (const jinja::SyntaxTrouble& trouble) {
    throw Error(Cause::refused, fmt::format("{}, line {}: {}", where, trouble.line, printable(trouble.what)));
  } catch (const jinja::Trouble& trouble) {
    throw Error(Cause::refused, fmt::format("{}: {}", where, printable(trouble.what)));
  }
}

std::string ChatTemplate::render(const nlohmann::ordered_json& variables, std::time_t now) const {
  try {
    const jinja::Value value = jinja::Value::of(variables);
    const jinja::Dict* dict = value.as<jinja::Dict>();
    return jinja::run(parsed_->body, dict == nullptr ? jinja::Dict{} : *dict, now);
  } catch (const jinja::RunTrouble& trouble) {
    throw Error(Cause::refused, fmt::format("{}, line {}: {}{}", parsed_->where, trouble.line,
                                            trouble.raised ? "the template refuses this conversation: " : "",
                                            printable(jinja::brief(trouble.what, kLongestMessage))));
  } catch (const jinja::Trouble& trouble) {
    throw Error(Cause::refused, fmt::format("{}: {}", parsed_->where, printable(trouble.what)));
  }
}

}  // namespace tsprun::detail::text
