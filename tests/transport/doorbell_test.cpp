// The doorbell by which a sleeping rank is woken: soon after it rings, never much later than asked, and an error where it can't
// be made.
#include "transport/doorbell.h"
#include "tests/support/few_descriptors.h"
#include "transport/cause.h"
#include "transport/posix.h"
#include "transport/shm/node_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <thread>
#include <utility>
#include <vector>

namespace tsprun::detail::doorbell_test {
namespace {

shm::NodeMemory one_rank() { return shm::NodeMemory::create_memfd({.heap_bytes = 64ULL << 20}); }

TEST(DoorbellTest, WakesASleeperLongBeforeItsSleepEnds) {
  const shm::NodeMemory memory = one_rank();
  Doorbell& bell = memory.doorbell(0);
  constexpr int kRounds = 50;
  std::atomic<int> rounds_seen{0};
  std::atomic<int> round{0};
  std::vector<std::uint64_t> lasted_ns;
  std::thread sleeper([&] {
    std::uint64_t start = posix::now_ns();
    for (int expected = 1; expected <= kRounds; ++expected) {
      while (round.load() < expected) {
        bell.arm();
        if (round.load() < expected) bell.sleep(100'000'000);
        bell.disarm();
      }
      const std::uint64_t end = posix::now_ns();
      lasted_ns.push_back(end - std::exchange(start, end));
      rounds_seen.store(expected);
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    round.store(i);
    bell.ring();
    while (rounds_seen.load() < i) std::this_thread::yield();
  }
  sleeper.join();
  // Without the bell each round would last 100 ms. On a busy machine some last as long with it.
  std::ranges::sort(lasted_ns);
  EXPECT_LT(lasted_ns[kRounds / 2], 90'000'000U);
}

TEST(DoorbellTest, SleepsAtMostAsLongAsAsked) {
  const shm::NodeMemory memory = one_rank();
  Doorbell& bell = memory.doorbell(0);
  bell.arm();
  const std::uint64_t start = posix::now_ns();
  bell.sleep(20'000'000);
  const std::uint64_t slept = posix::now_ns() - start;
  EXPECT_GE(slept, 15'000'000U);
  EXPECT_LT(slept, 20'000'000'000U);
  // Nobody is to sleep for hours because the waker died.
  bell.arm();
  const std::uint64_t again = posix::now_ns();
  bell.sleep(3'600'000'000'000);
  EXPECT_LT(posix::now_ns() - again, 20'000'000'000U);
}

/// As before Linux 5.11, and in containers whose seccomp profile is older than the kernel.
TEST(DoorbellTest, SleepsWhereEpollPwait2IsMissing) {
  const shm::NodeMemory memory = one_rank();
  const posix::UniqueFd never(::eventfd(0, EFD_CLOEXEC));
  const int descriptors[] = {never.get()};
  std::uint64_t slept = 0;
  bool forbidden = false;
  // A filter can't be taken back, so it is on a thread of its own.
  std::thread([&] {
    sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                             BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
                             BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    forbidden = ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
    SleepSet sleep_set(memory.doorbell(0), descriptors);
    const std::uint64_t start = posix::now_ns();
    sleep_set.sleep(20'000'000);
    slept = posix::now_ns() - start;
  }).join();
  if (!forbidden) GTEST_SKIP() << "this kernel has no seccomp filters";
  EXPECT_GE(slept, 15'000'000U);
  EXPECT_LT(slept, 20'000'000'000U);
}

#if !defined(TSP_SANITIZE_ADDRESS)  // as few_descriptors.h

TEST(DoorbellTest, APlaceToSleepThatCannotBeMadeIsAnError) {
  const shm::NodeMemory memory = one_rank();
  const int descriptors[] = {memory.descriptor()};
  const test::FewDescriptors none(0);
  try {
    const SleepSet sleep_set(memory.doorbell(0), descriptors);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Too many open files"), std::string::npos) << error.what();
  }
}

#endif

}  // namespace
}  // namespace tsprun::detail::doorbell_test
