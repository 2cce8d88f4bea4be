// Tokenizers of every kind against what Hugging Face's library makes of the same files and texts (tests/text/make_fixtures.py),
// in one go and token by token; files that are damaged or mean harm.
#include "layers/text/tokenizer.h"
#include "tests/layers/temporary_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::text::tokenizer_test {
namespace {

using nlohmann::json;

const std::filesystem::path kFixtures = std::filesystem::path(TSP_ORACLE_DIR) / "../text/fixtures";

std::string fixture(const std::string& name) { return test::read_all(kFixtures / (name + ".json")); }

std::vector<Token> encoded(const Tokenizer& tokenizer, std::string_view text, bool special = false) {
  std::vector<Token> ids;
  Encoder(tokenizer).encode(text, special, ids);
  return ids;
}

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

class OfFixture : public testing::TestWithParam<std::string> {};

TEST_P(OfFixture, GivesTheLibrarysIdsAndTexts) {
  const Tokenizer tokenizer = Tokenizer::parse(fixture(GetParam()), GetParam());
  const json cases = json::parse(test::read_all(kFixtures / (GetParam() + ".expected.json")));
  ASSERT_GE(cases.size(), 80U);
  Encoder encoder(tokenizer);
  for (int round = 0; round < 2; ++round) {  // the second time from the cache
    for (const json& each : cases) {
      const auto text = each.at("text").get<std::string>();
      std::vector<Token> ids;
      encoder.encode(text, each.at("special").get<bool>(), ids);
      EXPECT_EQ(ids, each.at("ids").get<std::vector<Token>>()) << text;
      EXPECT_EQ(tokenizer.decode(ids, false), each.at("decoded").get<std::string>()) << text;
    }
  }
}

TEST_P(OfFixture, StreamsWholeCharacters) {
  const Tokenizer tokenizer = Tokenizer::parse(fixture(GetParam()), GetParam());
  for (const json& each : json::parse(test::read_all(kFixtures / (GetParam() + ".expected.json")))) {
    TextStream stream(tokenizer, false);
    std::string text;
    for (const Token id : each.at("ids").get<std::vector<Token>>()) {
      const std::string part = stream.add(id);
      EXPECT_NO_THROW(static_cast<void>(json(part).dump())) << "half a character";
      text += part;
    }
    EXPECT_EQ(text += stream.finish(), each.at("decoded").get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, OfFixture,
                         testing::Values("byte_level", "byte_level_words", "byte_level_suffix", "byte_fallback",
                                         "byte_fallback_prefix", "unknown", "unigram", "unigram_bytes", "word_piece",
                                         "word_piece_parts", "word_piece_lengths"),
                         [](const auto& each) { return each.param; });

TEST(Tokenizer, StreamsAWordAsSoonAsItIsThere) {
  const Tokenizer tokenizer = Tokenizer::parse(fixture("byte_level"), "byte_level");
  TextStream stream(tokenizer, true);
  std::vector<std::string> parts;
  for (const Token id : encoded(tokenizer, "\xe2\x98\x83x", true)) parts.push_back(stream.add(id));
  EXPECT_EQ(parts, (std::vector<std::string>{"", "", "", "\xe2\x98\x83", "x", ""}));  // special tokens are left out
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, HasTheIdOfATokenByItsText) {
  const Tokenizer tokenizer = Tokenizer::parse(fixture("byte_level"), "byte_level");
  EXPECT_EQ(tokenizer.find("<|end|>"), std::optional<Token>(390));
  EXPECT_EQ(tokenizer.find("!"), std::optional<Token>(0));
  EXPECT_EQ(tokenizer.find("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.ids(), 397U);
  EXPECT_EQ(tokenizer.decode(std::vector<Token>{-1, 1 << 30, 0}, false), "!");
}

TEST(Tokenizer, TakesTimeInProportionToTheText) {
  for (const char* name : {"byte_level", "byte_fallback", "unigram", "word_piece"}) {
    const Tokenizer tokenizer = Tokenizer::parse(fixture(name), name);
    const double before = processor_seconds();
    // Each is one word, in which one pair after the other is merged, or one run of what a special token begins with.
    for (const char* piece : {"a", "the", " ", "\n", "<", "e\xcc\x81", "\xe5\xad\x97"}) {
      std::string text;
      while (text.size() < 300'000) text += piece;
      EXPECT_FALSE(encoded(tokenizer, text).empty() && *piece > ' ') << piece;
    }
    EXPECT_LT(processor_seconds() - before, 20) << name;
  }
}

TEST(Tokenizer, IsSharedByThreads) {
  const Tokenizer tokenizer = Tokenizer::parse(fixture("byte_level"), "byte_level");
  const std::string text = "The cat's 12 hats, naïve? 中文 <|end|> cat";
  const std::vector<Token> alone = encoded(tokenizer, text);
  std::vector<std::vector<Token>> together(4);
  std::vector<std::thread> threads;
  for (auto& ids : together) threads.emplace_back([&] { ids = encoded(tokenizer, text); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& ids : together) EXPECT_EQ(ids, alone);
}

/// The text of a small tokenizer.json, with a part of it replaced.
std::string small(const std::string& what = "", const std::string& by = "") {
  std::string text =
      R"({"added_tokens":[{"id":3,"content":"<s>","special":true}],"normalizer":null,"pre_tokenizer":null,"post_processor":null,)"
      R"("decoder":{"type":"Fuse"},"model":{"type":"BPE","unk_token":"?","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})";
  if (!what.empty()) text.replace(text.find(what), what.size(), by);
  return text;
}

Tokenizer parsed(const std::string& what, const std::string& by) { return Tokenizer::parse(small(what, by), "file"); }

// Merges are looked up some time after they were read; which of them is bad, and where it ends in the file, is known
// nevertheless.
TEST(Tokenizer, NamesABadMergeWhereverItStands) {
  for (const int count : {1, 15, 16, 17, 31, 32, 33, 100}) {
    for (const int bad : {0, count / 2, count - 1}) {
      std::string merges;
      for (int i = 0; i < count; ++i) merges += std::string(i == 0 ? "" : ",") + (i == bad ? R"("a c")" : R"("a b")");
      const std::string whole = small(R"("merges":["a b"])", R"("merges":[)" + merges + "]");
      const std::size_t end = whole.find(R"("a c")") + 5;
      EXPECT_REFUSED(Tokenizer::parse(whole, "file"), "it lacks c", "byte " + std::to_string(end) + ":");
    }
  }
}

TEST(Tokenizer, RefusesWhatItCantRead) {
  EXPECT_EQ(encoded(Tokenizer::parse(small(), "file"), "aabb<s>"), (std::vector<Token>{0, 2, 1, 3}));
  EXPECT_REFUSED(Tokenizer::parse("", "file"), "file", "byte 0", "the end");
  EXPECT_REFUSED(Tokenizer::parse(small().substr(0, 150), "file"), "file");
  EXPECT_REFUSED(Tokenizer::parse(R"({"model":{"vocab":)" + std::string(100, '[') + "}}", "file"), "at most 32 levels");
  EXPECT_REFUSED(parsed(R"("type":"BPE")", R"("type":"WordLevel")"), "model.type", "BPE, Unigram or WordPiece", "WordLevel");
  EXPECT_REFUSED(parsed(R"("merges":["a b"])", R"("merges":["a c"])"), "the vocabulary has", "it lacks c");
  EXPECT_REFUSED(parsed(R"("merges":["a b"])", R"("merges":["b a"])"), "it lacks ba");
  EXPECT_REFUSED(parsed(R"("merges":["a b"])", R"("merges":["a b c"])"), "two tokens with a blank between them");
  EXPECT_REFUSED(parsed(R"("merges":["a b"])", R"("merges":[["a"]])"), "a comma");
  EXPECT_REFUSED(parsed(R"(,"merges":["a b"])", ""), "model.merges", "missing");
  EXPECT_REFUSED(parsed(R"("b":1)", R"("b":0)"), "each id once");
  EXPECT_REFUSED(parsed(R"("b":1)", R"("a":1)"), "each token once");
  EXPECT_REFUSED(parsed(R"("b":1)", R"("a":0)"), "each token once");
  EXPECT_REFUSED(parsed(R"("b":1)", R"("b":99999999999)"), "an id from 0 to 16777215");
  EXPECT_REFUSED(parsed(R"("b":1)", R"("b":-1)"), "an id from 0");
  EXPECT_REFUSED(parsed(R"("b":1)", R"("\ud800":1)"), "surrogate");
  EXPECT_REFUSED(parsed(R"("id":3)", R"("id":7)"), "added_tokens[0].id", "expected 3");
  EXPECT_REFUSED(parsed(R"("unk_token")", R"("dropout":0.1,"unk_token")"), "dropout", "other tokens each time");
  EXPECT_REFUSED(parsed(R"("normalizer":null)", R"("normalizer":{"type":"NFX"})"), "normalizer.type", "NFKC", "NFX");
  EXPECT_REFUSED(parsed(R"("pre_tokenizer":null)", R"("pre_tokenizer":{"type":"UnicodeScripts"})"), "pre_tokenizer.type",
                 "Whitespace");
  EXPECT_REFUSED(
      parsed(
          R"("pre_tokenizer":null)",
          R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":"(a"}}]})"),
      "pre_tokenizer.pretokenizers[0].pattern.Regex", "Oniguruma", "parenthesis", "(a");
  EXPECT_REFUSED(parsed(R"("decoder":{"type":"Fuse"})", R"("decoder":{"type":"Melt"})"), "decoder.type", "ByteFallback", "Melt");
  EXPECT_REFUSED(
      parsed(R"("post_processor":null)", R"("post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B"}}]})"),
      "post_processor.single[0].Sequence.id", "once");
  EXPECT_REFUSED(parsed(R"("normalizer":null)", R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"/////w=="})"),
                 "double array");
  const test::TemporaryFolder folder;
  EXPECT_REFUSED(Tokenizer::load(folder.path()), "tokenizer.json", "there is no such file", "tokenizer.model");
}

TEST(Tokenizer, RefusesTextsThatItCantCut) {
  const Tokenizer tokenizer = Tokenizer::parse(small(), "file");
  EXPECT_REFUSED(encoded(tokenizer, "abx"), "unk_token ?", "isn't in its vocabulary");
  EXPECT_REFUSED(encoded(tokenizer, "ab\xc3"), "byte 2 of 3", "UTF-8");
  EXPECT_REFUSED(encoded(tokenizer, "\xed\xa0\x80"), "byte 0 of 3", "UTF-8");
  // Tries 2²⁰⁰ ways of cutting the letters.
  const Tokenizer slow =
      parsed(R"("pre_tokenizer":null)",
             R"("pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"(?:a|a|aa)+b|(a+)+c"}})");
  EXPECT_REFUSED(encoded(slow, std::string(200, 'a')), "expression", "gives up", "retry-limit", "shorter parts");
  // Tries each of the letters as often as letters follow.
  const Tokenizer square = parsed(R"("pre_tokenizer":null)",
                                  R"("pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"(?:a|x)+[bc]"}})");
  EXPECT_REFUSED(encoded(square, std::string(8'000, 'a')), "expression", "gives up", "retry-limit-in-search");
  // Each match is found at once, but looks at all that follows.
  const Tokenizer far = parsed(R"("pre_tokenizer":null)",
                               R"x("pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"a(?=(?>a*)b|)"}})x");
  EXPECT_REFUSED(encoded(far, std::string(300'000, 'a')), "expression", "gives up", "too long");
  // Each match is found by some millions of steps, too few for the limits of one search.
  const Tokenizer many_steps =
      parsed(R"("pre_tokenizer":null)",
             R"("pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"(?:a|a)*c|[ab]"}})");
  std::string pieces;
  for (int i = 0; i < 200; ++i) pieces += std::string(20, 'a') + 'b';
  EXPECT_REFUSED(encoded(many_steps, pieces), "expression", "gives up", "too long");
  // All pieces of a text have its time together.
  const Tokenizer in_words =
      parsed(R"("pre_tokenizer":null)", R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},)"
                                        R"x({"type":"Split","behavior":"Isolated","pattern":{"Regex":"(?:a|a)*c|[ab]"}}]})x");
  std::ranges::replace(pieces, 'b', ' ');
  EXPECT_REFUSED(encoded(in_words, pieces), "expression", "gives up", "too long");
}

TEST(Tokenizer, FindsMatchesOfAnyLengthInLongTexts) {
  const auto left = [](const std::string& expression, const std::string& text) {
    const std::string pattern = fmt::format(R"("pre_tokenizer":{{"type":"Split","behavior":"Removed","pattern":{{"Regex":{}}}}})",
                                            json(expression).dump());
    return encoded(parsed(R"("pre_tokenizer":null)", pattern), text);
  };
  using Ids = std::vector<Token>;
  const std::string as(40'000, 'a');
  const std::string bs(40'000, 'b');
  EXPECT_EQ(left("a+[bc]", bs + "aab" + bs), Ids(80'000, 1));
  EXPECT_EQ(left("a+", bs + as + "b" + bs), Ids(80'001, 1));
  EXPECT_EQ(left("(a)+b", bs + as + "b" + bs), Ids(80'000, 1));
  EXPECT_EQ(left("(?>a{35000})", "b" + as + "b"), Ids(left("x", "b" + std::string(5'000, 'a') + "b")));
  EXPECT_EQ(left("b(?=a{35000})", bs + as), Ids(left("x", std::string(39'999, 'b') + as)));
  EXPECT_EQ(left("(?<=a{9})b(b)*", as + bs), Ids(40'000, 0));
  EXPECT_REFUSED(left("\\Ga", "a"), "Regex", "\\G");
  EXPECT_EQ(left("\\\\Ga", "a"), Ids{0});
  // Each match counts letters, or looks at all of a run of flags: one search of all places couldn't be stopped.
  EXPECT_REFUSED(left("a{20000}b", std::string(300'000, 'a')), "gives up", "too long");
}

TEST(Tokenizer, LoadsManyTokensInTimeInProportion) {
  constexpr int kTokens = 200'000;
  std::string vocabulary = R"("a":0,"b":1)";
  std::string merges = R"(["a","b"])";
  vocabulary += R"(,"ab":2)";
  for (int i = 3; i < kTokens; ++i) vocabulary += fmt::format(",\"a{}\":{}", i, i);
  std::string added;
  for (int i = 0; i < 20'000; ++i)
    added += fmt::format("{}{{\"id\":{},\"content\":\"<|{}|>\",\"special\":true}}", i == 0 ? "" : ",", kTokens + i, i);
  const double before = processor_seconds();
  const Tokenizer tokenizer = Tokenizer::parse(
      fmt::format(R"({{"added_tokens":[{}],"model":{{"type":"BPE","vocab":{{{}}},"merges":[{}]}}}})", added, vocabulary, merges),
      "file");
  EXPECT_EQ(encoded(tokenizer, "ab<|77|>a"), (std::vector<Token>{2, kTokens + 77, 0}));
  EXPECT_LT(processor_seconds() - before, 4);
}

}  // namespace
}  // namespace tsprun::detail::text::tokenizer_test
