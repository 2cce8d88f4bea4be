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
#include <unistd.h>
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

TEST(KeptTokens, AreAsPrivateAsTheirText) {
  namespace fs = std::filesystem;
  const test::TemporaryFolder folder;
  const fs::path text = folder.write("book.txt", "secret");
  const KeptTokens kept(text, key("a"));
  for (const fs::perms perms :
       {fs::perms::owner_read | fs::perms::owner_write, fs::perms::owner_read | fs::perms::group_read, fs::perms(0644)}) {
    fs::permissions(text, perms);
    kept.write(std::vector<Token>{1});
    EXPECT_EQ(fs::status(kept.path()).permissions(), perms);
  }
  fs::remove(text);
  kept.write(std::vector<Token>{1});
  EXPECT_EQ(fs::status(kept.path()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(KeptTokens, OfStrangersAreNotTaken) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a file another user's";
  const test::TemporaryFolder folder;
  const std::filesystem::path text = folder.write("book.txt", "text");
  const KeptTokens kept(text, key("a"));
  kept.write(std::vector<Token>{1});
  constexpr ::uid_t kStranger = 65534;
  ASSERT_EQ(::chown(kept.path().c_str(), kStranger, kStranger), 0);
  EXPECT_FALSE(kept.read());
  ASSERT_EQ(::chown(text.c_str(), kStranger, kStranger), 0);  // whose text it is may keep its tokens
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
