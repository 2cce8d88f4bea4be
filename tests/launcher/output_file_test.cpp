// Where results are written: never in the place of what a command reads, or of what is no file.
#include "launcher/model/output_file.h"

#include "tests/layers/temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace tsprun::detail::launcher::output_file_test {
namespace {

using Paths = std::vector<std::filesystem::path>;

std::string refusal_of(const std::filesystem::path& path, const Paths& sources = {}) {
  return test::refusal([&] { check_output("--output", path.string(), 100, sources); });
}

TEST(OutputFile, OfANewNameOrAnOldFileIsAccepted) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(check_output("--output", (folder / "new").string(), 100, {}), (folder / "new").string());
  const std::filesystem::path old = folder.write("old", "results of yesterday");
  EXPECT_EQ(check_output("--output", old.string(), 100, Paths{folder.write("other", "")}), old.string());
  EXPECT_EQ(test::read_all(old), "results of yesterday");
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
}

TEST(OutputFile, TakesThePlaceOfNothingThatIsNoFile) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink(folder / "pipe", folder / "link");
  for (const std::filesystem::path& path : {folder / "pipe", folder / "link", std::filesystem::path("/dev/null")}) {
    const std::string why = refusal_of(path);
    EXPECT_NE(why.find("--output"), std::string::npos) << why;
    EXPECT_NE(why.find("is no regular file"), std::string::npos) << why;
  }
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
}

TEST(OutputFile, FollowsLinks) {
  const test::TemporaryFolder folder;
  std::filesystem::create_symlink(folder.write("file", "x"), folder / "link");
  EXPECT_EQ(check_output("--output", (folder / "link").string(), 100, {}), std::filesystem::canonical(folder / "file").string());
}

TEST(OutputFile, ReplacesNothingThatTheCommandReads) {
  const test::TemporaryFolder folder;
  const std::filesystem::path input = folder.write("input", "x");
  std::filesystem::create_directory(folder / "model");
  const std::filesystem::path weights = folder.write("model/model.safetensors", "y");
  const Paths sources = {folder / "missing", input, folder / "model"};
  EXPECT_NE(refusal_of(input, sources).find("the command reads that file"), std::string::npos);
  EXPECT_NE(refusal_of(folder / "model/../input", sources).find("the command reads that file"), std::string::npos);
  EXPECT_NE(refusal_of(weights, sources).find("the command reads that file"), std::string::npos);
  EXPECT_EQ(test::read_all(input), "x");
}

}  // namespace
}  // namespace tsprun::detail::launcher::output_file_test
