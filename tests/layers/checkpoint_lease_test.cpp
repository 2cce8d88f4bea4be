// The lease of a folder of checkpoints: one holder at a time, a dead one's is taken over, and a holder that was taken for dead
// finds out.
#include "layers/checkpoints/checkpoint_lease.h"
#include "tests/layers/temporary_folder.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <string>
#include <sys/file.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace tsprun::detail::checkpoint_lease_test {
namespace {

using std::chrono::milliseconds;

const LeaseTimes kQuick{
    .beat = milliseconds(50), .silence = milliseconds(600), .settle = milliseconds(200), .dying = milliseconds(0)};

std::string run_named(char digit) { return std::string(32, digit); }

/// A lease as a run on another machine would have written it.
std::string of_another_machine(int beat) {
  std::string text = fmt::format(
      "{{\"tsprun lease\":1,\"token\":\"{}\",\"run\":\"{}\",\"host\":\"far-away\",\"boot\":\"another boot\",\"pid\":77,"
      "\"since\":\"2026-01-02 03:04:05 UTC\",\"locked\":1,\"beat\":{}}}",
      std::string(32, '7'), run_named('b'), beat);
  text.resize(511, ' ');
  return text + "\n";
}

TEST(CheckpointLease, IsHeldByOneRunAtATimeAndGivenBack) {
  const test::TemporaryFolder folder;
  const auto dir = folder / "new/runs";
  {
    const CheckpointLease first(dir, run_named('a'), {}, kQuick);
    check_lease(dir, first.token());
    EXPECT_EQ(read_lease(dir)->run, run_named('a'));
    EXPECT_EQ(read_lease(dir)->pid, ::getpid());
    EXPECT_REFUSED(CheckpointLease(dir, run_named('b'), {}, kQuick), "the folder is leased by run aaaaaaaa",
                   fmt::format("process {}", ::getpid()), "name another folder");
    EXPECT_EQ(read_lease(dir)->token, first.token());
  }
  EXPECT_FALSE(read_lease(dir));
  EXPECT_FALSE(std::filesystem::exists(dir));  // made by the lease, and empty
  EXPECT_TRUE(std::filesystem::exists(folder / "new"));
  const CheckpointLease second(folder.path(), run_named('b'), {}, kQuick);
  EXPECT_EQ(read_lease(folder.path())->run, run_named('b'));
}

TEST(CheckpointLease, BeatsAsLongAsItIsHeld) {
  const test::TemporaryFolder folder;
  const CheckpointLease lease(folder.path(), run_named('a'), {}, kQuick);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (read_lease(folder.path()).value_or(LeaseRecord()).beat < 3) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    std::this_thread::sleep_for(milliseconds(10));
  }
  check_lease(folder.path(), lease.token());
}

TEST(CheckpointLease, OfAProcessThatDiedHereIsTakenOverAtOnce) {
  const test::TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    const CheckpointLease dies(folder.path(), run_named('a'), {}, kQuick);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(read_lease(folder.path())->pid, child);
  bool waited = false;
  const CheckpointLease next(
      folder.path(), run_named('b'), [&](const std::string&) { waited = true; }, kQuick);
  EXPECT_FALSE(waited);
  check_lease(folder.path(), next.token());
}

TEST(CheckpointLease, OfASilentRunOnAnotherMachineIsTakenOverAfterAWhile) {
  const test::TemporaryFolder folder;
  folder.write(kLeaseName, of_another_machine(5));
  std::string said;
  const auto begun = std::chrono::steady_clock::now();
  std::optional<CheckpointLease> mine(
      std::in_place, folder.path(), run_named('a'), [&](const std::string& line) { said = line; }, kQuick);
  EXPECT_GE(std::chrono::steady_clock::now() - begun, kQuick.silence + kQuick.settle);
  EXPECT_NE(said.find("leased by run bbbbbbbb, process 77 on far-away"), std::string::npos) << said;
  check_lease(folder.path(), mine->token());
  // The other one wakes, and asks before it gives a checkpoint its name.
  EXPECT_REFUSED(check_lease(folder.path(), std::string(32, '7')), "lease of the folder is lost", "by run aaaaaaaa");
}

TEST(CheckpointLease, OfAMachineThatIsGoneIsTakenOverThoughItsLockIsStillThere) {
  const test::TemporaryFolder folder;
  const auto file = folder.write(kLeaseName, of_another_machine(5));
  std::optional<posix::UniqueFd> its_lock(std::in_place, ::open(file.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(its_lock->get(), LOCK_EX | LOCK_NB), 0);
  const CheckpointLease mine(folder.path(), run_named('a'), {}, kQuick);
  check_lease(folder.path(), mine.token());
  EXPECT_FALSE(read_lease(folder.path())->locked);
  // Whoever gets the lock when it goes at last has no right to the folder by that.
  its_lock.reset();
  LeaseTimes patient = kQuick;
  patient.silence = std::chrono::seconds(20);
  EXPECT_REFUSED(CheckpointLease(folder.path(), run_named('c'), {}, patient), "by run aaaaaaaa", "gives signs of life");
  check_lease(folder.path(), mine.token());
}

TEST(CheckpointLease, OfALivingRunOnAnotherMachineIsRefusedByName) {
  const test::TemporaryFolder folder;
  folder.write(kLeaseName, of_another_machine(1));
  std::thread far_away([&] {
    std::this_thread::sleep_for(milliseconds(200));
    folder.write(kLeaseName, of_another_machine(2));
  });
  LeaseTimes patient = kQuick;
  patient.silence = std::chrono::seconds(20);
  EXPECT_REFUSED(CheckpointLease(folder.path(), run_named('a'), {}, patient), "process 77 on far-away, since 2026-01-02 03:04:05",
                 "gives signs of life");
  far_away.join();
  EXPECT_EQ(read_lease(folder.path())->host, "far-away");
}

TEST(CheckpointLease, OfTwoThatTakeItOverTogetherTheFirstGivesWay) {
  const test::TemporaryFolder folder;
  folder.write(kLeaseName, of_another_machine(1));
  std::thread far_away([&] {
    // Another taker, whose word comes after this one's.
    while (read_lease(folder.path()).value_or(LeaseRecord()).run != run_named('a')) std::this_thread::yield();
    folder.write(kLeaseName, of_another_machine(0));
  });
  LeaseTimes slow = kQuick;
  slow.settle = milliseconds(1500);
  EXPECT_REFUSED(CheckpointLease(folder.path(), run_named('a'), {}, slow), "far-away", "came at the same time");
  far_away.join();
}

TEST(CheckpointLease, ThatAnotherRunHasTakenIsLeftToIt) {
  const test::TemporaryFolder folder;
  {
    const CheckpointLease mine(folder.path(), run_named('a'), {}, kQuick);
    folder.write(kLeaseName, of_another_machine(9));
    EXPECT_REFUSED(check_lease(folder.path(), mine.token()), "is lost", "far-away");
    std::this_thread::sleep_for(4 * kQuick.beat);
  }
  EXPECT_EQ(test::read_all(folder / std::string(kLeaseName)), of_another_machine(9));
  std::filesystem::remove(folder / std::string(kLeaseName));
  EXPECT_REFUSED(check_lease(folder.path(), run_named('a')), "is gone");
}

TEST(CheckpointLease, NeedsAFolderThatCanBeWritten) {
  const test::TemporaryFolder folder;
  folder.write("file", "");
  EXPECT_REFUSED(CheckpointLease(folder / "file/deeper", run_named('a'), {}, kQuick), "file");
  std::filesystem::create_directory(folder / std::string(kLeaseName));
  EXPECT_REFUSED(CheckpointLease(folder.path(), run_named('a'), {}, kQuick), "can't be opened to lease the folder");
}

// A deadline of nothing: the thread has seldom begun by then.
TEST(CheckpointLease, DoesNotWaitForEverForItsThread) {
  const test::TemporaryFolder folder;
  LeaseTimes hasty = kQuick;
  hasty.begin = milliseconds(0);
  int late = 0;
  // Most threads begin later than at once; a machine that is busy elsewhere needs more attempts.
  const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (int i = 0; i < 50 || (late == 0 && std::chrono::steady_clock::now() < enough); ++i) {
    try {
      const CheckpointLease lease(folder / "runs", run_named('a'), {}, hasty);
      check_lease(folder / "runs", lease.token());
    } catch (const Error& error) {
      ++late;
      EXPECT_EQ(error.cause(), Cause::stalled);
      EXPECT_NE(std::string(error.what()).find("runs: waited 0 s for the thread that keeps the lease"), std::string::npos);
    }
    ASSERT_FALSE(std::filesystem::exists(folder / "runs")) << "given back in either case";
  }
#if !defined(TSP_SANITIZE_THREAD)  // its threads have begun when they are made
  EXPECT_GT(late, 0);
#endif
}

}  // namespace
}  // namespace tsprun::detail::checkpoint_lease_test
