// Any bytes as a chat template: refused with an Error, or a text, which is UTF-8, and the same again for the same conversation.
#include "layers/text/characters.h"
#include "layers/text/template/chat_template.h"
#include "transport/cause.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

nlohmann::ordered_json variables() {
  return nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": " be kind "}, {"role": "user", "content": "naïve 中文\n"},
                 {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5, true]}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "documents": null, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})");
}

/// Returns the text that a template makes; empty, if it refuses.
std::string rendered(const tsprun::detail::text::ChatTemplate& of, const nlohmann::ordered_json& with) {
  constexpr std::time_t kNow = 1720182896;
  try {
    return of.render(with, kNow);
  } catch (const tsprun::Error&) {
    return {};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using tsprun::detail::text::ChatTemplate;
  static const nlohmann::ordered_json with = variables();
  try {
    const ChatTemplate made = ChatTemplate::parse({reinterpret_cast<const char*>(data), size}, "template");
    const std::string text = rendered(made, with);
    std::size_t wrong = 0;
    if (tsprun::detail::text::utf8_prefix(text, wrong) != text.size()) std::abort();
    if (rendered(made, with) != text) std::abort();
  } catch (const tsprun::Error&) {
  }
  return 0;
}
