// Which ids end a text, by the two files that may say so.
#include "layers/text/end_tokens.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <vector>

namespace tsprun::detail::end_tokens_test {
namespace {

using text::end_tokens;

TEST(EndTokens, AreThoseOfGenerationConfigAndElseOfConfig) {
  const test::TemporaryFolder folder;
  EXPECT_TRUE(end_tokens(folder.path()).empty());
  folder.write("config.json", R"({"eos_token_id": null})");
  EXPECT_TRUE(end_tokens(folder.path()).empty());
  folder.write("config.json", R"({"eos_token_id": 2})");
  EXPECT_EQ(end_tokens(folder.path()), (std::vector<Token>{2}));
  folder.write("generation_config.json", R"({"do_sample": true})");
  EXPECT_EQ(end_tokens(folder.path()), (std::vector<Token>{2}));
  folder.write("generation_config.json", R"({"eos_token_id": [151645, 151643]})");
  EXPECT_EQ(end_tokens(folder.path()), (std::vector<Token>{151645, 151643}));
}

TEST(EndTokens, AreRefusedIfTheyAreNoIds) {
  const test::TemporaryFolder folder;
  for (const char* wrong : {"-1", "\"</s>\"", "2147483648", "1.5", "{}", "true"}) {
    folder.write("generation_config.json", std::string("{\"eos_token_id\": ") + wrong + "}");
    EXPECT_REFUSED(end_tokens(folder.path()), "generation_config.json", "eos_token_id", "a token id or a list of them");
  }
  folder.write("generation_config.json", R"({"eos_token_id": [1, -2]})");
  EXPECT_REFUSED(end_tokens(folder.path()), "generation_config.json", "eos_token_id[1]", "a token id");
  folder.write("generation_config.json", "not JSON");
  EXPECT_REFUSED(end_tokens(folder.path()), "generation_config.json");
}

}  // namespace
}  // namespace tsprun::detail::end_tokens_test
