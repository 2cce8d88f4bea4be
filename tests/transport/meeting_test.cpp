// How ranks that no tsprun started find each other, with threads in the place of processes.

#include "transport/bootstrap/meeting.h"
#include "tests/support/patience.h"
#include "tests/transport/own_objects.h"
#include "transport/bootstrap/job_description.h"
#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::bootstrap::meeting_test {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

Identity identity(int rank, int size, const std::string& job) {
  Identity result;
  result.rank = result.local_rank = rank;
  result.size = result.local_size = size;
  result.starter = "torchrun";
  result.job_id = job;
  return result;
}

/// A job id of this test run alone.
std::string job_id(const std::string& test) { return fmt::format("test-{}-{}", ::getpid(), test); }

struct Arrival {
  std::optional<Meeting> meeting;
  Cause cause = Cause::none;
  std::string message;
  int culprit = -1;
};

Arrival arrive(const Identity& who, std::uint64_t timeout) {
  Arrival arrival;
  try {
    arrival.meeting.emplace(meet(who, timeout));
  } catch (const Error& error) {
    arrival.cause = error.cause();
    arrival.message = error.what();
    arrival.culprit = error.rank();
  }
  return arrival;
}

/// Lets all of them arrive at once.
std::vector<Arrival> arrive_all(const std::vector<Identity>& identities, std::uint64_t timeout) {
  std::vector<Arrival> arrivals(identities.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < identities.size(); ++i) {
    threads.emplace_back([&, i] { arrivals[i] = arrive(identities[i], timeout); });
  }
  for (std::thread& thread : threads) thread.join();
  return arrivals;
}

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

/// Returns whether a socket has such a part in its name, and these flags, where some are given.
bool socket_exists(const std::string& part, const std::string& flags = {}) {
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (line.find(part) != std::string::npos && line.find(flags) != std::string::npos) return true;
  }
  return false;
}

/// Waits until local rank 0 of a job listens.
bool host_listens(const std::string& job) {
  const std::string accepts = " 00010000 ";  // __SO_ACCEPTCON
  return test::until(30, [&] { return socket_exists(job, accepts); });
}

TEST(Meeting, GivesAllRanksTheSameMemory) {
  for (int size : {1, 2, 7}) {
    const std::string job = job_id(fmt::format("same{}", size));
    std::vector<Identity> identities;
    for (int rank = size - 1; rank >= 0; --rank) identities.push_back(identity(rank, size, job));
    std::vector<Arrival> arrivals = arrive_all(identities, 20 * kSecond);
    for (int i = 0; i < size; ++i) {
      Arrival& arrival = arrivals[static_cast<std::size_t>(i)];
      ASSERT_TRUE(arrival.meeting) << arrival.message;
      const shm::NodeLayout& layout = arrival.meeting->memory.layout();
      EXPECT_EQ(layout.local_ranks, static_cast<std::uint32_t>(size));
      EXPECT_EQ(layout.world_size, static_cast<std::uint32_t>(size));
      const JobDescription described = job_of(arrival.meeting->memory);
      EXPECT_EQ(described.first_rank, 0U);
      EXPECT_EQ(described.timeout_ns, 20 * kSecond);
      EXPECT_EQ(described.supervised, 0U);
      EXPECT_GE(described.cores, 1U);
      EXPECT_EQ(arrival.meeting->pids, std::vector<int>(static_cast<std::size_t>(size), ::getpid()));
      arrival.meeting->memory.page(1 + i)[0] = static_cast<std::byte>(i + 1);
    }
    for (const Arrival& arrival : arrivals) {
      for (int i = 0; i < size; ++i) EXPECT_EQ(arrival.meeting->memory.page(1 + i)[0], static_cast<std::byte>(i + 1));
    }
    EXPECT_FALSE(socket_exists(job));
  }
}

TEST(Meeting, LeavesNothingBehind) {
  const std::string job = job_id("clean");
  const std::ptrdiff_t descriptors = open_descriptors();
  const std::set<std::string> objects = test::own_objects();
  for (int i = 0; i < 5; ++i) arrive_all({identity(0, 2, job), identity(1, 2, job)}, 20 * kSecond);
  arrive_all({identity(0, 2, job)}, kSecond / 10);
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_FALSE(socket_exists(job));
  EXPECT_EQ(test::own_objects(), objects);
}

TEST(Meeting, NamesTheRanksThatDidNotCome) {
  const std::string job = job_id("missing");
  const std::uint64_t start = posix::now_ns();
  const auto arrivals = arrive_all({identity(0, 5, job), identity(1, 5, job), identity(3, 5, job)}, 3 * kSecond);
  EXPECT_LT(posix::now_ns() - start, 15 * kSecond);
  for (const Arrival& arrival : arrivals) {
    EXPECT_EQ(arrival.cause, Cause::stalled) << arrival.message;
    EXPECT_NE(arrival.message.find("2, 4"), std::string::npos) << arrival.message;
    EXPECT_NE(arrival.message.find(": were they started on this machine"), std::string::npos) << arrival.message;
    EXPECT_EQ(arrival.culprit, 2);
  }
}

TEST(Meeting, NamesLocalRankZeroIfItDidNotCome) {
  const std::string job = job_id("nohost");
  for (const Arrival& arrival : arrive_all({identity(1, 3, job), identity(2, 3, job)}, kSecond / 2)) {
    EXPECT_EQ(arrival.cause, Cause::stalled);
    EXPECT_NE(arrival.message.find("local rank 0"), std::string::npos) << arrival.message;
    EXPECT_EQ(arrival.culprit, 0);
  }
}

// Who came first has waited longest: it must not give up before local rank 0 has told who is missing.
TEST(Meeting, NamesTheMissingRankToTheEarliestComerToo) {
  const std::string job = job_id("early");
  Arrival early;
  std::thread first([&] { early = arrive(identity(1, 3, job), 3 * kSecond); });
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const Arrival host = arrive(identity(0, 3, job), 3 * kSecond);
  first.join();
  EXPECT_NE(host.message.find("local rank 2"), std::string::npos) << host.message;
  EXPECT_NE(host.message.find(": was it started on this machine"), std::string::npos) << host.message;
  EXPECT_EQ(early.message, host.message);
  EXPECT_EQ(early.cause, Cause::stalled);
}

TEST(Meeting, RefusesARankThatComesTwice) {
  const std::string job = job_id("twice");
  for (const Arrival& arrival : arrive_all({identity(0, 3, job), identity(1, 3, job), identity(1, 3, job)}, 5 * kSecond)) {
    EXPECT_EQ(arrival.cause, Cause::refused) << arrival.message;
    EXPECT_NE(arrival.message.find("rank 1 came twice"), std::string::npos) << arrival.message;
  }
}

TEST(Meeting, RefusesASecondJobOfTheSameName) {
  const std::string job = job_id("second");
  Arrival first;
  std::thread host([&] { first = arrive(identity(0, 2, job), 5 * kSecond); });
  EXPECT_TRUE(host_listens(job));
  const Arrival second = arrive(identity(0, 2, job), 5 * kSecond);
  EXPECT_EQ(second.cause, Cause::refused);
  EXPECT_NE(second.message.find(job), std::string::npos) << second.message;
  const Arrival guest = arrive(identity(1, 2, job), 5 * kSecond);
  host.join();
  EXPECT_TRUE(first.meeting) << first.message;
  EXPECT_TRUE(guest.meeting) << guest.message;
}

TEST(Meeting, RefusesSizesThatDisagree) {
  const std::string job = job_id("sizes");
  for (const Arrival& arrival : arrive_all({identity(0, 2, job), identity(1, 3, job)}, 3 * kSecond)) {
    EXPECT_EQ(arrival.cause, Cause::refused) << arrival.message;
    EXPECT_NE(arrival.message.find("sizes disagree"), std::string::npos) << arrival.message;
  }
}

TEST(Meeting, KeepsJobsWithLongNamesApart) {
  const std::string long_name = job_id(std::string(300, 'x'));
  const std::string job_a = long_name + "a";
  const std::string job_b = long_name + "b";
  auto arrivals =
      arrive_all({identity(0, 2, job_a), identity(0, 2, job_b), identity(1, 2, job_a), identity(1, 2, job_b)}, 10 * kSecond);
  for (const Arrival& arrival : arrivals) ASSERT_TRUE(arrival.meeting) << arrival.message;
  arrivals[0].meeting->memory.page(0)[0] = std::byte{1};
  EXPECT_EQ(arrivals[2].meeting->memory.page(0)[0], std::byte{1});
  EXPECT_EQ(arrivals[3].meeting->memory.page(0)[0], std::byte{0});
}

// Processes that talk to the socket without being ranks don't disturb the meeting.
TEST(Meeting, IgnoresStrangers) {
  const std::string job = job_id("strangers");
  Arrival host;
  std::thread waiting([&] { host = arrive(identity(0, 2, job), 10 * kSecond); });
  EXPECT_TRUE(host_listens(job));
  const std::string socket_name = fmt::format("tsp-{}-{}", ::getuid(), job);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(socket_name.begin(), socket_name.end(), address.sun_path + 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + socket_name.size());
  std::vector<posix::UniqueFd> strangers;
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{24}, std::size_t{5000}, std::size_t{0}}) {
    posix::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length), 0) << "the socket's name changed";
    const std::string garbage(bytes, 'g');
    if (bytes != 0) {
      ASSERT_EQ(::send(socket.get(), garbage.data(), bytes, 0), static_cast<ssize_t>(bytes));
    }
    if (bytes != 1) strangers.push_back(std::move(socket));
  }
  const Arrival guest = arrive(identity(1, 2, job), 10 * kSecond);
  waiting.join();
  EXPECT_TRUE(host.meeting) << host.message;
  EXPECT_TRUE(guest.meeting) << guest.message;
}

TEST(Meeting, RefusesRanksOfSeveralNodes) {
  Identity who = identity(0, 4, job_id("nodes"));
  who.local_size = 2;
  const Arrival arrival = arrive(who, kSecond);
  EXPECT_EQ(arrival.cause, Cause::refused);
  EXPECT_NE(arrival.message.find("one node"), std::string::npos) << arrival.message;
}

}  // namespace
}  // namespace tsprun::detail::bootstrap::meeting_test
