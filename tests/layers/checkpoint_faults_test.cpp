// Saves that are disturbed: killed at every part and at random moments, ranks that fail, a disk that fills. What was there before
// stays whole, nobody hangs, and nothing half-written bears a checkpoint's name.
#include "layers/checkpoints/checkpoint.h"
#include "layers/checkpoints/checkpoint_folder.h"
#include "tests/layers/checkpoint_support.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <sched.h>
#include <string>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace tsprun::detail::checkpoint_faults_test {
namespace {

using Names = std::set<std::string>;

constexpr std::array<std::string_view, 5> kParts = {"create", "write", "checksum", "publish", "delete"};

/// A process that ends by itself or by the test: its exit status as waitpid() gives it.
class Child {
 public:
  explicit Child(const std::function<bool()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    bool good = false;
    try {
      good = body();
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "child: %s\n", failure.what());
    }
    ::_exit(good ? 0 : 1);
  }
  void kill() const { ::kill(pid_, SIGKILL); }
  int wait() const {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return status;
  }

 private:
  pid_t pid_;
};

bool killed(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
bool succeeded(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

/// All ranks failed by the same refusal.
void expect_same_refusal(const std::vector<test::RankOutcome>& outcomes, const std::string& text, int culprit) {
  for (const test::RankOutcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.failed);
    EXPECT_EQ(outcome.cause, Cause::refused) << outcome.message;
    EXPECT_NE(outcome.message.find(text), std::string::npos) << outcome.message;
    EXPECT_EQ(outcome.message.find('\n'), std::string::npos) << outcome.message;
    EXPECT_EQ(outcome.message, outcomes.front().message);
    EXPECT_EQ(outcome.culprit, culprit);
  }
}

TEST(CheckpointFaults, KilledAtAnyPartLeavesThePreviousWhole) {
  for (const std::string_view part : kParts) {
    for (const int culprit : {0, 2}) {
      SCOPED_TRACE(fmt::format("rank {} killed at {}", culprit, part));
      const test::TemporaryFolder folder;
      test::save(folder.path(), 2, test::checkpoint_state(10), 10);
      const Child child([&] {
        test::try_save(
            folder.path(), 3, test::checkpoint_state(20), 20,
            [&](int rank, std::string_view begun) {
              if (rank == culprit && begun == part) {
                std::this_thread::sleep_for(std::chrono::milliseconds(5));  // others are in the middle of it
                ::kill(::getpid(), SIGKILL);
              }
            },
            1);
        return true;
      });
      EXPECT_TRUE(killed(child.wait()));

      const CheckpointSearch search = search_checkpoints(folder.path());
      EXPECT_TRUE(search.skipped.empty()) << search.skipped.front();
      ASSERT_TRUE(search.found);
      // Rank 0 publishes without waiting for the others to begin that part.
      const bool may_be_published = part == "delete" || (part == "publish" && culprit != 0);
      EXPECT_TRUE(search.found->state.step == 10 || may_be_published);
      EXPECT_EQ(test::load_and_count_wrong(*search.found, 2, search.found->state.step), 0U);
      remove_leftovers(folder.path());  // as whoever has leased the folder does
      for (const std::string& name : test::names_in(folder.path())) EXPECT_FALSE(name.ends_with(".partial")) << name;
    }
  }
}

TEST(CheckpointFaults, KilledAtRandomMomentsNeverLosesMoreThanTheSaveInProgress) {
  constexpr int kKills = 30;
  const test::TemporaryFolder folder;
  test::save(folder.path(), 2, test::checkpoint_state(1), 1);
  std::uint64_t newest = 1;
  std::uint32_t random = 12345;
  std::uint32_t window_us = 40'000;  // some saves' time; a slower machine finds its own
  for (int kill = 0; kill < kKills; ++kill) {
    const Child child([&] {
      for (std::uint64_t step = newest + 1;; ++step) test::save(folder.path(), 2, test::checkpoint_state(step), step, 2);
      return false;
    });
    random = random * 1664525 + 1013904223;
    std::this_thread::sleep_for(std::chrono::microseconds(random % window_us));
    child.kill();
    EXPECT_TRUE(killed(child.wait()));

    const CheckpointSearch search = search_checkpoints(folder.path());
    ASSERT_TRUE(search.found);
    EXPECT_TRUE(search.skipped.empty()) << search.skipped.front();
    EXPECT_GE(search.found->state.step, newest);
    if (search.found->state.step == newest) window_us += window_us / 4;
    newest = search.found->state.step;
    EXPECT_EQ(test::load_and_count_wrong(*search.found, 3, newest), 0U);
  }
  EXPECT_GT(newest, 1U) << "no save ever ended: the test kills too early to say anything";
}

TEST(CheckpointFaults, ARankThatFailsEndsTheSaveOnAll) {
  const test::TemporaryFolder folder;
  test::save(folder.path(), 2, test::checkpoint_state(10), 10);
  for (const std::string_view part : kParts) {
    for (const int culprit : {0, 1, 2}) {
      SCOPED_TRACE(fmt::format("rank {} fails at {}", culprit, part));
      const auto outcomes =
          test::try_save(folder.path(), 3, test::checkpoint_state(20), 20, [&](int rank, std::string_view begun) {
            if (rank == culprit && begun == part) throw Error(Cause::refused, "the disk is on fire");
          });
      expect_same_refusal(outcomes, "the disk is on fire", culprit);
      const bool published = part == "delete" || (part == "publish" && culprit != 0);
      EXPECT_EQ(test::names_in(folder.path()), published ? (Names{"step-000010", "step-000020"}) : (Names{"step-000010"}));
      std::filesystem::remove_all(folder / "step-000020");
    }
  }
}

TEST(CheckpointFaults, AFileThatOneRankCantOpenEndsTheSaveOnAll) {
  const test::TemporaryFolder folder;
  const auto outcomes = test::try_save(folder / "runs", 3, test::checkpoint_state(20), 20, [&](int rank, std::string_view begun) {
    // As on a node that doesn't share the folder.
    if (rank == 1 && begun == "write") {
      std::filesystem::remove(folder / "runs/step-000020.partial/optimizer.v.safetensors.partial");
    }
  });
  for (const test::RankOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.cause, Cause::refused);
    EXPECT_NE(outcome.message.find("optimizer.v.safetensors.partial"), std::string::npos) << outcome.message;
    EXPECT_EQ(outcome.message, outcomes.front().message);
  }
  EXPECT_EQ(test::names_in(folder / "runs"), Names{});
}

/// A small disk there that no other process sees and that goes away with this one. False, and errno: it can't be.
bool mount_small_disk(const std::filesystem::path& folder) {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=128k") == 0;
}

TEST(CheckpointFaults, ADiskThatFillsEndsTheSaveOnAll) {
  const test::TemporaryFolder folder;
  const Child probe([&] {
    if (mount_small_disk(folder.path())) return true;
    folder.write("why", std::strerror(errno));
    return false;
  });
  if (!succeeded(probe.wait())) {
    GTEST_SKIP() << "no right to mount a small disk here (" << test::read_all(folder / "why")
                 << "); AFileLimitEndsTheSaveOnAll covers the rest";
  }
  const Child child([&] {
    if (!mount_small_disk(folder.path())) return false;
    std::uint64_t step = 1;
    std::vector<test::RankOutcome> outcomes;
    for (; step < 100; ++step) {
      outcomes = test::try_save(folder / "runs", 3, test::checkpoint_state(step), step);
      if (outcomes.front().failed) break;
    }
    expect_same_refusal(outcomes, "No space left on device", 0);
    EXPECT_GT(step, 2U);
    EXPECT_LT(step, 50U);
    const CheckpointSearch search = search_checkpoints(folder / "runs");
    EXPECT_TRUE(search.skipped.empty());
    EXPECT_TRUE(search.found && search.found->state.step == step - 1);
    EXPECT_EQ(test::names_in(folder / "runs").size(), step - 1);
    // With room made, saving goes on.
    std::filesystem::remove_all(folder / "runs" / step_folder(1));
    test::save(folder / "runs", 3, test::checkpoint_state(step), step);
    return !testing::Test::HasFailure();
  });
  EXPECT_TRUE(succeeded(child.wait()));
}

TEST(CheckpointFaults, AFileLimitEndsTheSaveOnAll) {
  const test::TemporaryFolder folder;
  test::save(folder.path(), 2, test::checkpoint_state(10), 10);
  // At "create" no space can be taken; at "write" what was taken can't be written.
  for (const std::string_view part : {"create", "write"}) {
    const Child child([&] {
      ::signal(SIGXFSZ, SIG_IGN);
      const auto outcomes =
          test::try_save(folder.path(), 3, test::checkpoint_state(20), 20, [&](int rank, std::string_view begun) {
            if (rank != 0 || begun != part) return;
            const rlimit limit{4000, 4000};
            ::setrlimit(RLIMIT_FSIZE, &limit);
          });
      expect_same_refusal(outcomes, "File too large", 0);
      return !testing::Test::HasFailure();
    });
    EXPECT_TRUE(succeeded(child.wait())) << part;
    EXPECT_EQ(test::names_in(folder.path()), (Names{"step-000010"}));
  }
}

TEST(CheckpointFaults, LeftoversAreRemovedByTheNextSaveButNotByALook) {
  const test::TemporaryFolder folder;
  const auto leave = [&] {
    for (const char* name : {"step-000007.partial", "step-000010.replaced.partial", "mine.partial"}) {
      std::filesystem::create_directory(folder / name);
      folder.write(std::string(name) + "/model.safetensors", "half");
    }
  };
  leave();
  test::save(folder.path(), 2, test::checkpoint_state(10), 10);
  EXPECT_EQ(test::names_in(folder.path()), (Names{"mine.partial", "step-000010"}));
  leave();
  // Another run may be writing there, on a machine whose locks aren't seen here.
  for (const char* searched : {"", "step-000010", "step-000010/"}) {
    EXPECT_TRUE(search_checkpoints(folder / searched).found) << searched;
    EXPECT_TRUE(std::filesystem::exists(folder / "step-000007.partial/model.safetensors")) << searched;
  }
}

/// As a process leaves it that dies while it replaces a checkpoint on a file system that can't exchange names.
TEST(CheckpointFaults, ACheckpointThatWasToBeReplacedComesBack) {
  const test::TemporaryFolder folder;
  test::save(folder.path(), 2, test::checkpoint_state(10), 10);
  std::filesystem::rename(folder / "step-000010", folder / "step-000010.replaced.partial");
  // Who only looks names it.
  const CheckpointSearch search = search_checkpoints(folder.path());
  EXPECT_FALSE(search.found);
  ASSERT_EQ(search.skipped.size(), 1U);
  EXPECT_NE(search.skipped[0].find("step-000010.replaced.partial: a run died"), std::string::npos) << search.skipped[0];
  EXPECT_NE(search.skipped[0].find("rename it to step-000010 to"), std::string::npos) << search.skipped[0];
  test::save(folder.path(), 2, test::checkpoint_state(11), 10);
  EXPECT_EQ(test::names_in(folder.path()), (Names{"step-000010", "step-000011"}));
}

TEST(CheckpointFaults, AFolderThatAnotherJobWritesIsLeftAlone) {
  const test::TemporaryFolder folder;
  const PartialFolder other(folder.path(), 10);
  EXPECT_FALSE(search_checkpoints(folder.path()).found);
  EXPECT_TRUE(std::filesystem::exists(other.path()));
  expect_same_refusal(test::try_save(folder.path(), 2, test::checkpoint_state(10), 1), "another process writes it", 0);
  EXPECT_TRUE(std::filesystem::exists(other.path()));
}

}  // namespace
}  // namespace tsprun::detail::checkpoint_faults_test
