// What a chat template is given of a model's folder: special tokens, from the files that transformers reads.
#include "layers/text/chat.h"
#include "tests/layers/temporary_folder.h"
#include "transport/cause.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>

namespace tsprun::detail::chat_format_test {
namespace {

using test::TemporaryFolder;

std::string rendered(const std::filesystem::path& folder) {
  return text::ChatFormat::load(folder).render(nlohmann::ordered_json::array(), 0);
}

constexpr const char* kMap = "special_tokens_map.json";
constexpr const char* kTemplate = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token is defined }}";

TEST(ChatFormat, ReadsSpecialTokensFromTheFilesThatTransformersReads) {
  const TemporaryFolder folder;
  folder.write("chat_template.jinja", kTemplate);
  EXPECT_EQ(rendered(folder.path()), "|||False");
  folder.write(
      "special_tokens_map.json",
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "additional_special_tokens": ["<a>"], "pad_token": null})");
  EXPECT_EQ(rendered(folder.path()), "<s>|</s>||False");
  EXPECT_EQ(text::ChatFormat::load(folder.path()).special("eos_token"), "</s>");
  // The map goes before the configuration …
  folder.write(
      "tokenizer_config.json",
      R"({"bos_token": "<B>", "eos_token": "<E>", "pad_token": "<P>", "unk_token": {"content": "<U>"}, "add_bos_token": true})");
  EXPECT_EQ(rendered(folder.path()), "<s>|</s>||True");
  // … unless that lists the added tokens, as newer ones do.
  folder.write("tokenizer_config.json",
               R"({"bos_token": "<B>", "eos_token": "<E>", "pad_token": "<P>", "added_tokens_decoder": {}})");
  EXPECT_EQ(rendered(folder.path()), "<B>|<E>|<P>|False");
}

TEST(ChatFormat, RefusesAMapThatIsNone) {
  const TemporaryFolder folder;
  folder.write("chat_template.jinja", kTemplate);
  folder.write(kMap, "[]");
  EXPECT_REFUSED(text::ChatFormat::load(folder.path()), "special_tokens_map.json", "expected an object");
  folder.write(kMap, R"({"eos_token": 3})");
  EXPECT_REFUSED(text::ChatFormat::load(folder.path()), "special_tokens_map.json", "field \"eos_token\"", "expected a text",
                 "found 3");
  folder.write(kMap, R"({"eos_token": {"content": ["x"]}})");
  EXPECT_REFUSED(text::ChatFormat::load(folder.path()), "field \"eos_token\"", "found an object");
  folder.write(kMap, R"({"eos_token": "a", "eos_token": "b"})");
  EXPECT_REFUSED(text::ChatFormat::load(folder.path()), "given twice");
  folder.write(kMap, "{\"eos_token\": \"" + std::string(2 << 20, 'x') + "\"}");
  EXPECT_REFUSED(text::ChatFormat::load(folder.path()), "special_tokens_map.json", "a special_tokens_map.json");
}

}  // namespace
}  // namespace tsprun::detail::chat_format_test
