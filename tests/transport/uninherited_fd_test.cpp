// What a forked child has instead of its parent's descriptors.
#include "transport/uninherited_fd.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tsprun::detail::uninherited_fd_test {
namespace {

using posix::UninheritedFd;
using posix::UniqueFd;

std::array<UniqueFd, 2> connected() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// Returns whether what `body` says in a forked child is true.
template <class Body>
bool holds_in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

bool leads_to_null(int descriptor) {
  struct stat of {};
  return ::fstat(descriptor, &of) == 0 && S_ISCHR(of.st_mode) && of.st_rdev == makedev(1, 3);
}

TEST(UninheritedFd, IsClosedForOthersWhenItsOwnerClosesIt) {
  std::array<UniqueFd, 2> ends = connected();
  UninheritedFd owned(std::move(ends[0]));
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  char byte = 0;
  EXPECT_EQ(::read(ends[1].get(), &byte, 1), -1);
  EXPECT_EQ(errno, EAGAIN);
  owned.reset();
  // The child replaces its copy a moment after fork() has returned here.
  for (int tries = 0; tries < 500 && ::read(ends[1].get(), &byte, 1) != 0; ++tries) ::usleep(10'000);
  EXPECT_EQ(::read(ends[1].get(), &byte, 1), 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(UninheritedFd, LeadsToNullInAChildAndItsChildren) {
  std::array<UniqueFd, 2> ends = connected();
  const UninheritedFd owned(std::move(ends[0]));
  EXPECT_TRUE(holds_in_child([&] { return leads_to_null(owned.get()) && !leads_to_null(ends[1].get()); }));
  EXPECT_TRUE(holds_in_child([&] { return holds_in_child([&] { return leads_to_null(owned.get()); }); }));
  EXPECT_FALSE(leads_to_null(owned.get()));
}

TEST(UninheritedFd, FollowsItsOwner) {
  std::array<UniqueFd, 2> ends = connected();
  const int number = ends[0].get();
  UninheritedFd first(std::move(ends[0]));
  UninheritedFd second(std::move(first));
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): moving leaves it empty
  EXPECT_EQ(second.get(), number);
  EXPECT_TRUE(holds_in_child([&] { return leads_to_null(number); }));
  second = UninheritedFd();
  // The number is free again, and may be somebody else's, whom a child keeps.
  const UniqueFd again(::dup2(ends[1].get(), number));
  EXPECT_TRUE(holds_in_child([&] { return !leads_to_null(number); }));
}

/// What a child opens by the number, its own children keep.
TEST(UninheritedFd, IsNoneOfAChildThatUsesTheNumberForSomethingElse) {
  std::array<UniqueFd, 2> ends = connected();
  const UninheritedFd owned(std::move(ends[0]));
  EXPECT_TRUE(holds_in_child([&] {
    return ::dup2(ends[1].get(), owned.get()) == owned.get() && holds_in_child([&] { return !leads_to_null(owned.get()); });
  }));
}

}  // namespace
}  // namespace tsprun::detail::uninherited_fd_test
