// What `ulimit -n` leaves a job: how many ranks fit is known before one starts, and the soft limit binds ranks alone.
#include "tests/support/process.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tsprun::detail::test::open_files_test {
namespace {

Finished limited(const std::string& ulimit, const std::vector<std::string>& command) {
  std::vector<std::string> words = {"sh", "-c", ulimit + " && exec \"$0\" \"$@\""};
  words.insert(words.end(), command.begin(), command.end());
  return run_program(words);
}

void expect_refused(int limit, const std::vector<std::string>& options, const std::string& message) {
  std::vector<std::string> command = {tsprun_path()};
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {"run", "--", "true"});
  const Finished run = limited(fmt::format("ulimit -n {}", limit), command);
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_EQ(run.err, fmt::format("tsprun: {}, or raise the limit\n", message));
}

// 32 for tsprun itself, one for each node's memory, three for a rank.
TEST(OpenFiles, OfRanksThatShareOneMemoryAreThreeEach) {
  expect_refused(62, {"-n", "11"}, "-n 11: needs 66 open files, `ulimit -Hn` allows 62; try -n 9");
  EXPECT_EQ(limited("ulimit -n 62", tsprun_actor({"-n", "9"}, {"sum", "1"})).end.code, 0);
}

// And a bell and a link to the store.
TEST(OpenFiles, OfRanksThatTalkOverSocketsAreFiveEach) {
  expect_refused(86, {"-n", "11", "--nodes", "2"}, "-n 11: needs 89 open files, `ulimit -Hn` allows 86; try -n 10");
  expect_refused(86, {"-n", "11", "--intra", "tcp"}, "-n 11: needs 88 open files, `ulimit -Hn` allows 86; try -n 10");
  const Finished run = limited("ulimit -n 86", tsprun_actor({"-n", "10", "--nodes", "2", "--inter", "tcp"}, {"sum", "1"}));
  EXPECT_EQ(run.end.code, 0) << run.describe();
}

// The store is where node 0 is: all ranks of the job have a link to it.
TEST(OpenFiles, OfSeveralMachinesAreCountedWhereTheyAre) {
  const auto node = [](int index) {
    return std::vector<std::string>{
        "-n", "60", "--nnodes", "2", "--node-rank", std::to_string(index), "--rendezvous", "127.0.0.1:29500"};
  };
  expect_refused(200, node(0), "-n 60: needs 214 open files, `ulimit -Hn` allows 200; try -n 54");
  expect_refused(120, node(1), "-n 60: needs 153 open files, `ulimit -Hn` allows 120; try -n 43");
}

// tsprun raises its own soft limit, before it holds anything for a rank; ranks have it as it was, and what they are promised.
TEST(OpenFiles, TheSoftLimitBindsRanksAlone) {
  constexpr int kRanks = 60;
  const Finished run = limited("ulimit -Sn 64", {tsprun_path(), "-n", std::to_string(kRanks), "--nodes", "2", "--inter", "tcp",
                                                 "run", "--", "sh", "-c", "echo $(ulimit -n) $(readlink /proc/$$/fd/0)"});
  EXPECT_EQ(run.end.code, 0) << run.describe();
  const std::vector<std::string> lines = lines_of(run.out);
  EXPECT_EQ(lines.size(), static_cast<std::size_t>(kRanks));
  for (int rank = 1; rank < kRanks; ++rank) {
    const std::string line = fmt::format("[{}] 64 /dev/null", rank);
    EXPECT_NE(std::find(lines.begin(), lines.end(), line), lines.end()) << line << '\n' << run.describe();
  }
}

}  // namespace
}  // namespace tsprun::detail::test::open_files_test
