// Texts of tokens that come one by one, behind a prompt, and end before stop texts.
#include "launcher/model/model_text.h"

#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace tsprun::detail::launcher::token_text_test {
namespace {

/// Its tokenizer writes what it doesn't know as bytes, and keeps them back until another token comes.
TEST(TokenText, LooksForStopTextsBehindThePromptAlone) {
  const detail::test::TemporaryFolder folder;
  folder.write("tokenizer.json",
               detail::test::read_all(std::filesystem::path(TSP_ORACLE_DIR) / "../text/fixtures/byte_fallback.json"));
  ModelCommandOptions model;
  model.source = folder.path();
  const ModelText reader = ModelText::of(model);
  const std::vector<Token> prompt = reader.ids_within("The cat€", "--prompt");
  const std::vector<Token> more = reader.ids_within(" the € cat", "more");

  TokenText free(reader);
  std::string whole = free.prompt(prompt);
  EXPECT_EQ(whole.find("€"), std::string::npos);
  whole += free.add(more);
  whole += free.finish();

  TokenText stopping(reader, {"€"});
  std::string text = stopping.prompt(prompt);
  for (const Token id : more) text += stopping.add({&id, 1});
  text += stopping.finish();
  EXPECT_TRUE(stopping.stopped());
  EXPECT_EQ(text, whole.substr(0, whole.rfind("€")));
  EXPECT_NE(text.find("€"), std::string::npos);  // the prompt's
}

}  // namespace
}  // namespace tsprun::detail::launcher::token_text_test
