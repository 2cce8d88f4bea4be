// A host of several addresses: who listens on which, and whom a client reaches.
#include "transport/tcp/dial.h"
#include "tests/support/free_port.h"
#include "transport/cause.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <net/if.h>
#include <sched.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::tcp::dial_test {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr const char* kNowhere = "192.0.2.77";  // of TEST-NET-1: no machine's

/// All of 127.0.0.0/8 is any Linux machine's own.
std::vector<SocketAddress> on_port(std::uint16_t port, const std::vector<std::string>& hosts) {
  std::vector<SocketAddress> addresses;
  for (const std::string& host : hosts) addresses.push_back(resolve(host, port));
  return addresses;
}

/// Returns a port that no other test has at any of them.
std::uint16_t own_port() { return static_cast<std::uint16_t>(test::free_port()); }

std::uint16_t port_of(const posix::UniqueFd& socket) { return local_address(socket.get()).port(); }

/// Returns the text of the Error that `action` throws.
template <typename Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Listens, and has so many waiting already that the kernel leaves whoever comes without an answer.
struct Silent {
  posix::UniqueFd listener;
  std::vector<posix::UniqueFd> waiting;

  explicit Silent(const SocketAddress& where) : listener(::socket(where.family(), SOCK_STREAM, 0)) {
    EXPECT_EQ(::bind(listener.get(), where.get(), where.length), 0);
    EXPECT_EQ(::listen(listener.get(), 0), 0);
    const SocketAddress bound = local_address(listener.get());
    for (int i = 0; i < 4; ++i) {
      waiting.emplace_back(::socket(where.family(), SOCK_STREAM | SOCK_NONBLOCK, 0));
      static_cast<void>(::connect(waiting.back().get(), bound.get(), bound.length));  // under way
    }
  }
};

TEST(Resolve, GivesEveryAddressOnce) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    const std::vector<SocketAddress> addresses = resolve_all(host, 4711);
    ASSERT_EQ(addresses.size(), 1U);
    EXPECT_EQ(addresses[0].host(), host);
    EXPECT_EQ(addresses[0].port(), 4711);
  }
  EXPECT_GE(resolve_all("localhost", 1).size(), 1U);
  EXPECT_NE(refusal([] { resolve_all("no.such.host.invalid", 1); }).find("no such host"), std::string::npos);
}

TEST(Resolve, AsksAgainUntilTheDeadline) {
  int asked = 0;
  const auto known_later = [&](const std::string& host, std::uint16_t port) {
    return resolve_all(++asked < 3 ? "no.such.host.invalid" : host, port);
  };
  EXPECT_EQ(resolve_within("127.0.0.1", 4711, 30'000'000'000, known_later).size(), 1U);
  EXPECT_EQ(asked, 3);
  const std::string why = refusal([] { resolve_within("no.such.host.invalid", 1, 1'000'000); });
  EXPECT_NE(why.find("no.such.host.invalid: no such host"), std::string::npos) << why;
  EXPECT_NE(why.find("within 0.001 s"), std::string::npos) << why;
}

TEST(ListenOn, TakesThoseOfThisMachineAllOnOnePort) {
  const std::vector<posix::UniqueFd> listeners = listen_on(on_port(0, {kNowhere, "127.0.0.1", "127.0.0.2"}));
  ASSERT_EQ(listeners.size(), 2U);
  EXPECT_EQ(local_address(listeners[0].get()).host(), "127.0.0.1");
  EXPECT_EQ(local_address(listeners[1].get()).host(), "127.0.0.2");
  EXPECT_EQ(port_of(listeners[0]), port_of(listeners[1]));
}

TEST(ListenOn, TakesNoPortThatIsTakenAtOneOfThem) {
  const std::vector<posix::UniqueFd> other = listen_on(on_port(own_port(), {"127.0.0.2"}));
  const std::string what = refusal([&] { listen_on(on_port(port_of(other[0]), {"127.0.0.1", "127.0.0.2"})); });
  EXPECT_NE(what.find("127.0.0.2:" + std::to_string(port_of(other[0])) + ": the port is taken"), std::string::npos) << what;
}

TEST(ListenOn, NamesAllIfNoneIsOfThisMachine) {
  const std::string one = refusal([] { listen_on(on_port(5, {kNowhere})); });
  EXPECT_NE(one.find("192.0.2.77:5: this address isn't one of this machine"), std::string::npos) << one;
  const std::string two = refusal([] { listen_on(on_port(5, {kNowhere, "192.0.2.78"})); });
  EXPECT_NE(two.find("192.0.2.77:5, 192.0.2.78:5: none of these addresses is one of this machine"), std::string::npos) << two;
}

TEST(Dial, GoesOnToTheNextAddressWhereNobodyListens) {
  const std::vector<posix::UniqueFd> listeners = listen_on(on_port(own_port(), {"127.0.0.2"}));
  const posix::UniqueFd socket = dial(on_port(port_of(listeners[0]), {"127.0.0.1", "127.0.0.2"}), 30 * kSecond, {});
  EXPECT_EQ(peer_address(socket.get()).host(), "127.0.0.2");
}

TEST(Dial, GoesOnToTheNextAddressWhereNobodyAnswers) {
  const Silent silent(resolve("127.0.0.1", own_port()));
  const std::uint16_t port = port_of(silent.listener);
  const std::vector<posix::UniqueFd> listeners = listen_on(on_port(port, {"127.0.0.2"}));
  const posix::UniqueFd socket = dial(on_port(port, {"127.0.0.1", "127.0.0.2"}), 30 * kSecond, {});
  EXPECT_EQ(peer_address(socket.get()).host(), "127.0.0.2");
}

TEST(Dial, PrefersTheFirstAddress) {
  const std::vector<posix::UniqueFd> listeners = listen_on(on_port(own_port(), {"127.0.0.1", "127.0.0.2"}));
  const posix::UniqueFd socket = dial(on_port(port_of(listeners[0]), {"127.0.0.2", "127.0.0.1"}), 30 * kSecond, {});
  EXPECT_EQ(peer_address(socket.get()).host(), "127.0.0.2");
}

TEST(Dial, WaitsForOneWhoComesLater) {
  const std::uint16_t port = own_port();
  std::vector<posix::UniqueFd> listeners;
  int looks = 0;
  const posix::UniqueFd socket = dial(on_port(port, {"127.0.0.1", "127.0.0.2"}), 30 * kSecond, [&] {
    if (++looks == 5) listeners = listen_on(on_port(port, {"127.0.0.2"}));
  });
  EXPECT_EQ(peer_address(socket.get()).host(), "127.0.0.2");
}

TEST(Dial, TellsOfEveryAddressHowItsLastTryEnded) {
  const Silent silent(resolve("127.0.0.2", own_port()));
  const std::string port = std::to_string(port_of(silent.listener));
  const std::string one = refusal([&] { dial(on_port(port_of(silent.listener), {"127.0.0.1"}), kSecond / 5, {}); });
  EXPECT_NE(one.find("nobody answered at 127.0.0.1:" + port + " within 0.2 s (Connection refused)"), std::string::npos) << one;
  const std::string two = refusal([&] { dial(on_port(port_of(silent.listener), {"127.0.0.1", "127.0.0.2"}), kSecond, {}); });
  EXPECT_NE(two.find("any of 2 addresses within 1.0 s (127.0.0.1:" + port + ": Connection refused; 127.0.0.2:" + port +
                     ": Connection timed out)"),
            std::string::npos)
      << two;
}

TEST(Dial, EndsWhenItsCheckThrows) {
  const Silent silent(resolve("127.0.0.1", 0));
  const std::string what = refusal([&] {
    dial({local_address(silent.listener.get())}, 30 * kSecond, [] { throw Error(Cause::interrupted, "told to end"); });
  });
  EXPECT_EQ(what, "told to end");
}

// A socket whose own port is the one that it dials.
TEST(Dial, KnowsASocketThatHasReachedItself) {
  const SocketAddress any = resolve("127.0.0.1", 0);
  const posix::UniqueFd self(::socket(any.family(), SOCK_STREAM, 0));
  ASSERT_EQ(::bind(self.get(), any.get(), any.length), 0);
  const SocketAddress own = local_address(self.get());
  EXPECT_FALSE(is_self_connected(self.get()));  // not connected
  ASSERT_EQ(::connect(self.get(), own.get(), own.length), 0);
  EXPECT_TRUE(is_self_connected(self.get()));

  const std::vector<posix::UniqueFd> listeners = listen_on({any});
  const posix::UniqueFd other = dial({local_address(listeners[0].get())}, kSecond, {});
  EXPECT_FALSE(is_self_connected(other.get()));
}

/// Moves this process to a network of its own, whose kernel has one port alone for whoever connects. Returns false if it may not.
bool have_one_port(std::uint16_t port) {
  if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const posix::UniqueFd any(::socket(AF_INET, SOCK_DGRAM, 0));
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  if (::ioctl(any.get(), SIOCSIFFLAGS, &loopback) != 0) return false;
  std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
  range << port << ' ' << port << std::flush;
  return range.good();
}

// The kernel takes the very port that is dialed, where nobody listens yet.
TEST(Dial, ReachesNobodyRatherThanItself) {
  constexpr std::uint16_t kPort = 40'000;
  enum : int { refused, reached, other, taken, no_network };
  const pid_t child = ::fork();
  if (child == 0) {
    if (!have_one_port(kPort)) ::_exit(no_network);
    try {
      static_cast<void>(dial(on_port(kPort, {"127.0.0.1"}), kSecond / 4, {}));
    } catch (const Error& error) {
      if (error.cause() != Cause::stalled) ::_exit(other);
      // Whoever was dialed may come now.
      try {
        static_cast<void>(listen_on(on_port(kPort, {"127.0.0.1"})));
      } catch (const Error&) {
        ::_exit(taken);
      }
      ::_exit(refused);
    }
    ::_exit(reached);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == no_network) GTEST_SKIP() << "this process may have no network of its own";
  EXPECT_EQ(WEXITSTATUS(status), refused);
}

}  // namespace
}  // namespace tsprun::detail::tcp::dial_test
