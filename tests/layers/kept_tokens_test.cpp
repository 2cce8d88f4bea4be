// Tokens that are kept beside a text come back, or nothing does.
#include "layers/io/kept_tokens.h"

#include "tests/layers/temporary_folder.h"
#include "transport/cause.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::kept_tokens_test {
namespace {

Digest key(const std::string& text) { return digest(std::as_bytes(std::span(text))); }

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(KeptTokens, ComeBackForTheSameKeyAlone) {
  const test::TemporaryFolder folder;
  const std::vector<Token> ids = {7, 0, 151643, 1 << 30};
  const KeptTokens kept(folder / "book.txt", key("a"));
  EXPECT_FALSE(kept.read());
  kept.write(ids);
  EXPECT_EQ(kept.read(), ids);
  EXPECT_EQ(kept.path(), folder / ("." + std::string("book.txt.") + hexadecimal(key("a")).substr(0, 16) + ".tokens"));
  EXPECT_EQ(bytes_of(kept.path()).size(), 48 + 4 * ids.size());
  const KeptTokens other(folder / "book.txt", key("b"));
  EXPECT_FALSE(other.read());
  other.write({});
  EXPECT_EQ(other.read(), std::vector<Token>());
  EXPECT_EQ(kept.read(), ids);
  kept.write(std::vector<Token>{1});
  EXPECT_EQ(kept.read(), std::vector<Token>{1});
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++files;
  EXPECT_EQ(files, 2U);  // and none unfinished
}

TEST(KeptTokens, ThatWereChangedDoNot) {
  const test::TemporaryFolder folder;
  const KeptTokens kept(folder / "book.txt", key("a"));
  kept.write(std::vector<Token>{1, 2, 3});
  const std::string whole = bytes_of(kept.path());
  const std::string name = kept.path().filename().string();
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    folder.write(name, damaged);
    EXPECT_FALSE(kept.read()) << at;
    folder.write(name, whole.substr(0, at));
    EXPECT_FALSE(kept.read()) << at;
  }
  folder.write(name, whole + "1234");
  EXPECT_FALSE(kept.read());
  folder.write(name, whole);
  EXPECT_TRUE(kept.read());
}

TEST(KeptTokens, ThatCannotBeWrittenSayWhy) {
  const test::TemporaryFolder folder;
  const KeptTokens kept(folder / "gone" / "book.txt", key("a"));
  try {
    kept.write({});
    FAIL() << "written";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tsprun::detail::kept_tokens_test
