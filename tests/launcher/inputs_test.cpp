// What nodes prove to each other: the digests of files, the program, the kernels.

#include "launcher/inputs.h"
#include "tests/support/process.h"
#include "transport/cause.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tsprun::detail::launcher::inputs_test {
namespace {

using test::TemporaryDirectory;

void nothing() {}

std::string write(const TemporaryDirectory& folder, const std::string& name, const std::string& bytes) {
  std::ofstream(folder.path(name), std::ios::binary) << bytes;
  return folder.path(name);
}

TEST(Inputs, OfASmallFileAreItsXxh3) {
  const TemporaryDirectory folder;
  // printf abc | xxhsum -H2
  EXPECT_EQ(contents({{"--data", write(folder, "a", "abc")}}, nothing), (Agreement{{"--data", "(content 06b05ab6733a)"}}));
}

TEST(Inputs, OfALargeFileTellEveryByte) {
  const TemporaryDirectory folder;
  std::string bytes;
  bytes.resize(50'000'000, 'x');  // blocks of 16 MiB, the last one short
  const auto digest = [&] { return contents({{"--data", write(folder, "a", bytes)}}, nothing).at("--data"); };
  const std::string before = digest();
  EXPECT_EQ(digest(), before);
  for (const std::size_t at : {std::size_t{0}, std::size_t{16'777'216}, std::size_t{49'999'999}}) {
    bytes[at] = 'y';
    EXPECT_NE(digest(), before) << at;
    bytes[at] = 'x';
  }
  bytes.pop_back();
  EXPECT_NE(digest(), before);
}

TEST(Inputs, OfAnOptionCountInTheirOrderAndThoseOfAFolderByName) {
  const TemporaryDirectory folder;
  const InputFile a{"--data", write(folder, "a", "a")};
  const InputFile b{"--data", write(folder, "b", "b")};
  EXPECT_NE(contents({a, b}, nothing), contents({b, a}, nothing));
  const Agreement found = contents({{"--model", a.path, "config.json"}, {"--model", b.path, "model.safetensors"}}, nothing);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_TRUE(found.contains("--model's config.json"));
  EXPECT_TRUE(found.contains("--model's model.safetensors"));
}

TEST(Inputs, ThatCanNotBeReadAreNamed) {
  const TemporaryDirectory folder;
  try {
    contents({{"--data", folder.path("nowhere")}}, nothing);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::refused);
    EXPECT_NE(std::string(error.what()).find("nowhere"), std::string::npos) << error.what();
  }
}

TEST(Inputs, AreLeftAtATicksWord) {
  const TemporaryDirectory folder;
  const std::string path = write(folder, "large", "");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);  // a hole: it takes minutes to read and no room
  struct Enough {};
  EXPECT_THROW(contents({{"--data", path}}, [] { throw Enough(); }), Enough);
}

TEST(MachineFacts, TellProgramAndOnWishKernels) {
  const Agreement bare = machine_facts(std::nullopt);
  EXPECT_EQ(bare.size(), 1U);
  EXPECT_NE(bare.at("build").find("(program "), std::string::npos) << bare.at("build");
  const Agreement facts = machine_facts(kernels::Level::baseline);
  EXPECT_EQ(facts.at("build"), bare.at("build"));
  EXPECT_EQ(facts.at("kernels"), "baseline");
  EXPECT_FALSE(facts.at("gemm").empty());
  EXPECT_EQ(facts.size(), 3U);
}

}  // namespace
}  // namespace tsprun::detail::launcher::inputs_test
