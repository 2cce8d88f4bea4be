// Ranks whose process ends some time after they left the job, or otherwise than a signal to them would have it: what is told is
// how the process ended.

#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

namespace tsprun::detail::test::late_ends_test {
namespace {

using Words = std::vector<std::string>;

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The ranks are watched by nobody: whoever started them sees the end of the rank that left before the ends of those that it made
/// fail.
TEST(ARankThatLeavesAndEndsLate, EndsBeforeThoseThatWaitForIt) {
  const TemporaryDirectory folder;
  std::vector<std::unique_ptr<Process>> ranks;
  for (const char* rank : {"0", "1"}) {
    ProcessOptions options;
    options.environment = {{"RANK", rank}, {"WORLD_SIZE", "2"}, {"ACTOR_STORE", folder.path("")}};
    ranks.push_back(std::make_unique<Process>(Words{program_path("actor"), "leave_badly", "1", "3", "800"}, options));
  }
  EXPECT_NE(ranks[0]->wait(20).code, 0);
  EXPECT_TRUE(holds(ranks[0]->err(), "but rank 0 waits for it in barrier")) << ranks[0]->err();
  EXPECT_EQ(ranks[1]->wait(0.3).code, 3) << "it still ran";
}

// Its interpreter takes longer to end than the others wait for word of it.
TEST(ARankThatLeavesAndEndsLate, IsToldByItsExitCode) {
  const Finished run = run_program(tsprun_actor({"-n", "2"}, {"leave_badly", "1", "2", "2200"}));
  EXPECT_EQ(run.end.code, 2) << run.describe();
  EXPECT_TRUE(holds(run.err, "rank 1 exited with code 2")) << run.describe();
}

// A signal to the whole group, which the program survives, isn't how it ended.
TEST(AProgramThatCrashesAfterASignal, IsToldByTheCrash) {
  const Finished run = run_program({tsprun_path(), "run", "--", "sh", "-c", "trap 'kill -SEGV $$' TERM; kill -TERM 0; sleep 5"});
  EXPECT_EQ(run.end.code, 128 + SIGSEGV) << run.describe();
}

}  // namespace
}  // namespace tsprun::detail::test::late_ends_test
