// Which ids end a text, by the two files that may say so, and how tokens are to be drawn.
#include "layers/text/generation_config.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::generation_config_test {
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

TEST(RecommendedSampling, IsReadFieldByField) {
  const test::TemporaryFolder folder;
  EXPECT_FALSE(text::recommended_sampling(folder.path()).temperature);
  folder.write("generation_config.json", R"({"eos_token_id": 2, "top_p": null})");
  const text::RecommendedSampling none = text::recommended_sampling(folder.path());
  EXPECT_FALSE(none.draws || none.temperature || none.top_k || none.top_p || none.repetition_penalty);
  EXPECT_TRUE(none.ignored.empty());
  // As Qwen2.5 has it, and fields of other decoders.
  folder.write("generation_config.json", R"({"do_sample": true, "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8,
      "top_k": 20, "min_p": 0.05, "typical_p": 1.0, "num_beams": 1, "no_repeat_ngram_size": 3})");
  const text::RecommendedSampling found = text::recommended_sampling(folder.path());
  EXPECT_EQ(found.draws, true);
  EXPECT_EQ(found.temperature, 0.7);
  EXPECT_EQ(found.top_k, 20U);
  EXPECT_EQ(found.top_p, 0.8);
  EXPECT_EQ(found.repetition_penalty, 1.1);
  EXPECT_EQ(found.ignored, (std::vector<std::string>{"min_p 0.05", "no_repeat_ngram_size 3"}));
}

TEST(RecommendedSampling, IgnoresWhatIsOutOfRangeOrNotHeeded) {
  const test::TemporaryFolder folder;
  const auto ignored = [&](const std::string& field, const std::string& value) {
    folder.write("generation_config.json", "{\"" + field + "\": " + value + "}");
    const text::RecommendedSampling found = text::recommended_sampling(folder.path());
    EXPECT_FALSE(found.temperature || found.top_k || found.top_p || found.repetition_penalty) << field;
    return found.ignored.size() == 1 && found.ignored[0].starts_with(field);
  };
  for (const auto& [field, value] : {std::pair{"temperature", "-1"},
                                     {"temperature", "\"hot\""},
                                     {"top_p", "1.5"},
                                     {"top_k", "-2"},
                                     {"top_k", "2.5"},
                                     {"do_sample", "1"},
                                     {"repetition_penalty", "0"},
                                     {"suppress_tokens", "[3]"},
                                     {"stop_strings", "\"###\""},
                                     {"forced_bos_token_id", "7"}})
    EXPECT_TRUE(ignored(field, value)) << field << " " << value;
  EXPECT_FALSE(ignored("suppress_tokens", "[]"));
  EXPECT_FALSE(ignored("min_p", "0.0"));
  EXPECT_FALSE(ignored("bad_words_ids", "null"));
}

TEST(RecommendedSampling, TakesWhatOtherProgramsMeanByTheirEnds) {
  const test::TemporaryFolder folder;
  folder.write("generation_config.json", R"({"top_k": -1})");
  EXPECT_EQ(text::recommended_sampling(folder.path()).top_k, 0U);  // all
  folder.write("generation_config.json", R"({"top_p": 0, "temperature": 0.7})");
  const text::RecommendedSampling greedy = text::recommended_sampling(folder.path());
  EXPECT_EQ(greedy.draws, false);
  EXPECT_FALSE(greedy.top_p);
}

TEST(EndTokens, MayStandWithTheTextModelOfOneThatSeesImages) {
  const test::TemporaryFolder folder;
  folder.write("config.json", R"({"model_type": "mistral3", "text_config": {"eos_token_id": 2}})");
  EXPECT_EQ(end_tokens(folder.path()), (std::vector<Token>{2}));
  folder.write("config.json", R"({"eos_token_id": [1, 106], "text_config": {"eos_token_id": 2}})");
  EXPECT_EQ(end_tokens(folder.path()), (std::vector<Token>{1, 106}));
}

}  // namespace
}  // namespace tsprun::detail::generation_config_test
