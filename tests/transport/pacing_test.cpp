// TCP through an outage, on a kernel that can't bound its own waits. A filter on setsockopt makes any kernel such a one, for one
// thread and those that it starts. A filter on the receiving socket, which drops all that comes, is the outage.
#include "transport/tcp/pacing.h"
#include "transport/posix.h"
#include "transport/tcp/address.h"
#include "transport/tcp/dial.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <functional>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <thread>

namespace tsprun::detail::tcp::pacing_test {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint32_t kTcpRtoMax = 44;

/// Makes setsockopt(TCP_RTO_MAX_MS) fail in the calling thread, as it does before Linux 6.15. Returns false if it can't.
bool pretend_older_kernel() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + 2 * sizeof(std::uint64_t)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kTcpRtoMax, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(steps), steps};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// Runs `test` on such a kernel; skips it where there can be none.
void on_older_kernel(const std::function<void()>& test) {
  bool older = false;
  std::thread([&] {
    older = pretend_older_kernel();
    if (older) test();
  }).join();
  if (!older) GTEST_SKIP() << "no seccomp filters here, so no older kernel";
}

/// Two connected sockets whose addresses differ, as those of two machines do.
struct Ends {
  posix::UniqueFd near{::socket(AF_INET, SOCK_STREAM, 0)};
  posix::UniqueFd far;

  /// `patience_ms`: near's TCP_USER_TIMEOUT.
  explicit Ends(int patience_ms) {
    const posix::UniqueFd listener = std::move(listen_on({resolve("127.0.0.2", 0)}).front());
    const SocketAddress there = local_address(listener.get());
    const SocketAddress here = resolve("127.0.0.1", 0);
    EXPECT_EQ(::bind(near.get(), here.get(), here.length), 0);
    EXPECT_EQ(::connect(near.get(), there.get(), there.length), 0);
    pollfd came{listener.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&came, 1, 5000), 1);
    far = std::move(accept(listener.get()).socket);
    set_option(near.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, patience_ms);
  }
  /// Loses what comes to `far`.
  void cut() const {
    sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    const sock_fprog program{1, nothing};
    ASSERT_EQ(::setsockopt(far.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
  }
  void mend() const { set_option(far.get(), SOL_SOCKET, SO_DETACH_FILTER, 0); }
  void send_a_byte() const { ASSERT_EQ(::send(near.get(), "x", 1, MSG_NOSIGNAL), 1); }
  /// Waits for what `events` says. Returns after how many seconds it happened, negative: not within 20 s.
  static double when(int socket, short events) {
    const std::uint64_t began = posix::now_ns();
    pollfd watched{socket, events, 0};
    return ::poll(&watched, 1, 20'000) == 1 ? static_cast<double>(posix::now_ns() - began) * 1e-9 : -1;
  }
};

int user_timeout(int socket) {
  int value = -1;
  socklen_t bytes = sizeof value;
  ::getsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &bytes);
  return value;
}

void wait_ms(int milliseconds) { ::poll(nullptr, 0, milliseconds); }

// By itself TCP sends 0.2, 0.6, 1.4, 3.0 and 6.2 s after the first time.
TEST(Pacing, SendsSoonAfterAnOutage) {
  on_older_kernel([] {
    const Ends ends(8000);
    PacingThread pacing(8 * kSecond);
    pacing.add(ends.near.get());
    ends.cut();
    ends.send_a_byte();
    wait_ms(3400);
    EXPECT_TRUE(is_unanswered(ends.near.get()));
    EXPECT_LT(user_timeout(ends.near.get()), 8000);
    ends.mend();
    const double came = Ends::when(ends.far.get(), POLLIN);
    EXPECT_GE(came, 0);
    EXPECT_LT(came, 2);
    for (int i = 0; i < 50 && user_timeout(ends.near.get()) != 8000; ++i) wait_ms(100);
    EXPECT_EQ(user_timeout(ends.near.get()), 8000);
    EXPECT_FALSE(is_unanswered(ends.near.get()));
    pacing.remove(ends.near.get());
  });
}

TEST(Pacing, LeavesTheEndOfTheDeadlineToTheKernel) {
  on_older_kernel([] {
    const Ends ends(4000);
    PacingThread pacing(4 * kSecond);
    pacing.add(ends.near.get());
    ends.cut();
    ends.send_a_byte();
    const double ended = Ends::when(ends.near.get(), POLLIN);
    EXPECT_GE(ended, 4.0);
    EXPECT_LT(ended, 6.2);
    EXPECT_EQ(::send(ends.near.get(), "x", 1, MSG_NOSIGNAL), -1);
    EXPECT_EQ(errno, ETIMEDOUT);
    pacing.remove(ends.near.get());
  });
}

TEST(Pacing, TakesNoSocketThatNeedsNone) {
  const Ends ends(4000);
  Pacing pacing(4 * kSecond);
  if (bound_retransmission(ends.near.get(), 0)) {
    pacing.add(ends.near.get());
    EXPECT_TRUE(pacing.empty());
  }
  on_older_kernel([&] {
    const posix::UniqueFd listener = std::move(listen_on({resolve("127.0.0.1", 0)}).front());
    const SocketAddress there = local_address(listener.get());
    const posix::UniqueFd same_machine(::socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(::connect(same_machine.get(), there.get(), there.length), 0);
    pacing.add(same_machine.get());
    EXPECT_TRUE(pacing.empty());
    pacing.add(ends.near.get());
    EXPECT_FALSE(pacing.empty());
    pacing.remove(ends.near.get());
    EXPECT_TRUE(pacing.empty());
  });
}

}  // namespace
}  // namespace tsprun::detail::tcp::pacing_test
