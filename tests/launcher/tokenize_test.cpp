// `tokenize` from its command line: ids in a file and back to the text, and what is refused.
#include "tests/launcher/answer.h"
#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace tsprun::detail::launcher::tokenize_test {
namespace {

const std::string kTokenizer = detail::test::read_all(std::filesystem::path(TSP_ORACLE_DIR) / "../text/fixtures/byte_level.json");

class TokenizeCommand : public testing::Test {
 protected:
  TokenizeCommand() { folder_.write("tokenizer.json", kTokenizer); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  test::Answer tokenize(std::vector<std::string> words) const {
    words.insert(words.begin(), {"--model", folder_.path().string()});
    return test::answer_of("tokenize", words);
  }
  std::vector<std::uint32_t> ids(const std::string& name) const {
    const std::string bytes = detail::test::read_all(path(name));
    std::vector<std::uint32_t> result(bytes.size() / 4);
    std::memcpy(result.data(), bytes.data(), 4 * result.size());
    return result;
  }

  detail::test::TemporaryFolder folder_;
};

TEST_F(TokenizeCommand, MakesIdsOfTextsAndTextsOfIds) {
  folder_.write("one.txt", "The cat's naïve\n");
  folder_.write("two.txt", "中文 <|end|> 12");
  const test::Answer there = tokenize({path("one.txt"), path("two.txt"), "--output", path("tokens.u32")});
  ASSERT_EQ(there.code, 0) << there.err;
  EXPECT_EQ(there.report.at("tokenize").at("bytes"), 34);
  EXPECT_EQ(there.report.at("tokenize").at("tokens"), ids("tokens.u32").size());
  EXPECT_EQ(there.report.at("tokenize").at("vocabulary"), 397);
  const test::Answer back = tokenize({"--decode", "--special", path("tokens.u32"), "--output", path("back.txt")});
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_EQ(detail::test::read_all(path("back.txt")), "The cat's naïve\n中文 <|end|> 12");
  ASSERT_EQ(tokenize({"--decode", path("tokens.u32"), "--output", path("back.txt")}).code, 0);
  EXPECT_EQ(detail::test::read_all(path("back.txt")), "The cat's naïve\n中文  12");
  EXPECT_FALSE(std::filesystem::exists(path("tokens.u32.partial")));
}

TEST_F(TokenizeCommand, PutsSpecialTokensAroundEachTextIfAsked) {
  folder_.write("one.txt", "!");
  ASSERT_EQ(tokenize({path("one.txt"), path("one.txt"), "--output", path("plain.u32")}).code, 0);
  ASSERT_EQ(tokenize({"--special", path("one.txt"), path("one.txt"), "--output", path("special.u32")}).code, 0);
  EXPECT_EQ(ids("plain.u32"), (std::vector<std::uint32_t>{0, 0}));
  EXPECT_EQ(ids("special.u32"), (std::vector<std::uint32_t>{391, 0, 390, 391, 0, 390}));
}

TEST_F(TokenizeCommand, EndsEachDocumentOnceIfAsked) {
  folder_.write("one.txt", "!");
  folder_.write("ended.txt", "!!<|end|>");
  folder_.write("empty.txt", "");
  for (const char* token : {"<|end|>", "390"}) {
    ASSERT_EQ(tokenize({path("one.txt"), path("ended.txt"), path("empty.txt"), path("one.txt"), "--eos", token, "--output",
                        path("made.u32")})
                  .code,
              0);
    EXPECT_EQ(ids("made.u32"), (std::vector<std::uint32_t>{0, 390, 0, 0, 390, 0, 390}));
  }
  const auto refused = [&](const std::string& token, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {path("one.txt"), "--eos", token, "--output", path("made.u32")};
    words.insert(words.end(), more.begin(), more.end());
    const test::Answer answer = tokenize(words);
    EXPECT_EQ(answer.code, 2);
    return answer.err;
  };
  EXPECT_NE(refused("<|eot|>").find("--eos <|eot|>: the tokenizer has no token of this text"), std::string::npos);
  EXPECT_NE(refused("397").find("--eos 397"), std::string::npos);
  EXPECT_NE(refused("390", {"--decode"}).find("--decode makes no ids"), std::string::npos);
}

TEST_F(TokenizeCommand, RefusesWhatItCantDo) {
  folder_.write("one.txt", "one \xff two");
  folder_.write("odd.u32", "123");
  folder_.write("large.u32", std::string("\x01\0\0\0\xff\xff\0\0", 8));
  const auto refused = [&](const std::vector<std::string>& words) {
    const test::Answer answer = tokenize(words);
    EXPECT_EQ(answer.code, 2);
    return answer.err;
  };
  EXPECT_NE(refused({path("one.txt"), "--output", path("x.u32")}).find("one.txt: byte 4 of 9 isn't UTF-8"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path("x.u32")));
  EXPECT_FALSE(std::filesystem::exists(path("x.u32.partial")));
  EXPECT_NE(refused({path("one.txt"), "--output", path("x.bin")}).find("ends in .u32"), std::string::npos);
  EXPECT_NE(refused({path("one.txt"), "--decode", "--output", path("x.txt")}).find("a file of ids that ends in .u32"),
            std::string::npos);
  EXPECT_NE(refused({path("odd.u32"), "--output", path("x.u32")}).find("with --decode"), std::string::npos);
  EXPECT_NE(refused({path("odd.u32"), "--decode", "--output", path("x.txt")}).find("odd.u32: 3 bytes; expected a multiple of 4"),
            std::string::npos);
  EXPECT_NE(refused({path("large.u32"), "--decode", "--output", path("x.txt")})
                .find("token id 65535 at position 1 (byte 4); expected ids below the vocabulary's 397"),
            std::string::npos);
  EXPECT_NE(refused({path("none.txt"), "--output", path("x.u32")}).find("none.txt"), std::string::npos);
}

}  // namespace
}  // namespace tsprun::detail::launcher::tokenize_test
