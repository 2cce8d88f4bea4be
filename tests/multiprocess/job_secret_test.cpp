// The secret that the tspruns of a job share: made on first use, for its owner alone, and refused if it is no good.
#include "tests/multiprocess/two_launchers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <sys/stat.h>

namespace tsprun::detail::test::job_secret_test {
namespace {

TEST(TheSecret, IsMadeOnFirstUseForItsOwnerAlone) {
  const TemporaryDirectory home;
  const ProcessOptions options = with({{"HOME", home.path("")}});
  const int port = free_port();
  Process first(node_words(0, port, {}, {"digest"}), options);
  Process second(node_words(1, port, {}, {"digest"}), options);
  EXPECT_EQ(first.wait(20).code, 0) << first.err();
  EXPECT_EQ(second.wait(20).code, 0) << second.err();
  const std::string path = home.path(".config/tsprun/secret");
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  ::chmod(path.c_str(), 0644);
  const Finished open = run_program(node_words(0, port, {"--secret-file", path}, {"digest"}));
  EXPECT_EQ(open.end.code, 2) << open.describe();
  EXPECT_NE(open.err.find("chmod 600"), std::string::npos) << open.describe();
}

TEST(TheSecret, ThatIsShortIsRefusedWithTheCommandThatMakesAGoodOne) {
  const int port = free_port();
  const Finished typed = run_program(node_words(0, port, {}, {"digest"}), with({{"TSP_SECRET", "fifteen bytes.."}}));
  EXPECT_EQ(typed.end.code, 2) << typed.describe();
  EXPECT_NE(typed.err.find("TSP_SECRET: a secret of 15 bytes can be guessed"), std::string::npos) << typed.describe();
  const TemporaryDirectory folder;
  const std::string path = folder.path("secret");
  std::ofstream(path) << "hunter2\n";
  ::chmod(path.c_str(), 0600);
  const Finished run = run_program(node_words(0, port, {"--secret-file", path}, {"digest"}));
  EXPECT_EQ(run.end.code, 2) << run.describe();
  const std::size_t command = run.err.find("(umask 077; ");
  ASSERT_NE(command, std::string::npos) << run.describe();
  // The command makes one that is taken.
  const std::string line = run.err.substr(command, run.err.find(')', command) - command + 1);
  EXPECT_EQ(run_program({"sh", "-c", line}).end.code, 0) << line;
  Process first(node_words(0, port, {"--secret-file", path}, {"digest"}));
  Process second(node_words(1, port, {"--secret-file", path}, {"digest"}));
  EXPECT_EQ(first.wait(20).code, 0) << first.err();
  EXPECT_EQ(second.wait(20).code, 0) << second.err();
}

TEST(TheSecret, IsNotReadOutOfAFolder) {
  const TemporaryDirectory folder;
  const Finished run = run_program(node_words(0, free_port(), {"--secret-file", folder.path("")}, {"digest"}));
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_NE(run.err.find("it is a folder"), std::string::npos) << run.describe();
}

TEST(TheSecret, ThatCanNotBeMadeIsRefusedWithAWayOut) {
  const TemporaryDirectory folder;
  const std::string home = folder.path("file");  // a home in which no folder can be made, by whomever
  std::ofstream(home) << "x";
  const Finished run = run_program(node_words(0, free_port(), {}, {"digest"}), with({{"HOME", home}}));
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_NE(run.err.find("making the secret " + home), std::string::npos) << run.describe();
  EXPECT_NE(run.err.find("Not a directory; name another file by --secret-file"), std::string::npos) << run.describe();
}

}  // namespace
}  // namespace tsprun::detail::test::job_secret_test
