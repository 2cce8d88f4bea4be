// Tries addresses side by side with a head start for the preferred ones, and sets the options of sockets.
#include "transport/tcp/dial.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

namespace tsprun::detail::tcp {

namespace {

constexpr std::uint64_t kHeadStart_ns = 250'000'000;
constexpr std::uint64_t kPause_ns = 20'000'000;  // before an address that failed is tried again
constexpr int kSlice_ms = 20;
/// The option TCP_RTO_MAX_MS, which Debian 12's headers don't have yet, and the values that it accepts.
constexpr int kRetransmissionMost = 44;
constexpr std::uint64_t kRetransmissionLeast_ms = 1000;
constexpr std::uint64_t kRetransmissionLongest_ms = 120'000;

std::string all_of(const std::vector<SocketAddress>& addresses) {
  std::string text;
  for (const SocketAddress& address : addresses) text += (text.empty() ? "" : ", ") + address.print();
  return text;
}

/// One address that dial() tries repeatedly.
struct Try {
  SocketAddress where;
  std::uint64_t begins_ns;   ///< time of the next attempt
  posix::UniqueFd socket{};  ///< open while an attempt is under way
  int told = ETIMEDOUT;      ///< errno of the last finished attempt
};

/// Returns 0 for an attempt that has reached a listener, the errno of a refusal for one that has reached itself.
int reached(const Try& each) { return is_self_connected(each.socket.get()) ? ECONNREFUSED : 0; }

/// Begins an attempt. Returns 0 if connected, EINPROGRESS if it is under way, else the errno of the failure.
int begin(Try& each, std::uint64_t timeout_ns) {
  each.socket = posix::UniqueFd(::socket(each.where.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!each.socket) return errno;  // for example on a machine without IPv6
  set_option(each.socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  // If it reaches itself, whoever was dialed can still listen on the port afterwards.
  set_option(each.socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  bound_retransmission(each.socket.get(), 0);
  set_option(each.socket.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(each.socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<int>(std::min<std::uint64_t>(timeout_ns / 1'000'000, 1 << 30)));
  return ::connect(each.socket.get(), each.where.get(), each.where.length) == 0 ? reached(each) : errno;
}

/// Looks at an attempt that is under way. Returns as begin().
int look(const Try& each) {
  pollfd room{each.socket.get(), POLLOUT, 0};
  if (::poll(&room, 1, 0) <= 0) return EINPROGRESS;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(each.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? reached(each) : error;
}

/// Describes the failed attempts: "127.0.0.1:29500 within 5.0 s (Connection refused)".
std::string without_answer(const std::vector<Try>& tries, double seconds) {
  if (tries.size() == 1)
    return fmt::format("{} within {:.1f} s ({})", tries[0].where.print(), seconds, std::strerror(tries[0].told));
  std::string reasons;
  for (const Try& each : tries)
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", each.where.print(), std::strerror(each.told));
  return fmt::format("any of {} addresses within {:.1f} s ({})", tries.size(), seconds, reasons);
}

}  // namespace

Accepted accept(int listener) {
  Accepted arrival;
  arrival.from.length = sizeof arrival.from.storage;
  arrival.socket = posix::UniqueFd(::accept4(listener, arrival.from.get(), &arrival.from.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (arrival.socket) {
    set_option(arrival.socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    bound_retransmission(arrival.socket.get(), 0);
  } else if (errno == EMFILE || errno == ENFILE) {
    pollfd door{listener, POLLIN, 0};
    arrival.no_descriptor = ::poll(&door, 1, 0) > 0;
  }
  return arrival;
}

bool bound_retransmission(int socket, std::uint64_t outage_ns) {
  const auto most = static_cast<int>(
      std::clamp<std::uint64_t>(outage_ns / kStepsOfDeadline / 1'000'000, kRetransmissionLeast_ms, kRetransmissionLongest_ms));
  return ::setsockopt(socket, IPPROTO_TCP, kRetransmissionMost, &most, sizeof most) == 0;
}

bool leaves_machine(int socket) {
  SocketAddress there;
  there.length = sizeof there.storage;
  return ::getpeername(socket, there.get(), &there.length) == 0 && there.host() != local_address(socket).host();
}

bool is_self_connected(int socket) {
  SocketAddress there;
  there.length = sizeof there.storage;
  return ::getpeername(socket, there.get(), &there.length) == 0 && there.print() == local_address(socket).print();
}

void set_option(int socket, int level, int option, int value) { ::setsockopt(socket, level, option, &value, sizeof value); }

std::vector<posix::UniqueFd> listen_on(const std::vector<SocketAddress>& addresses) {
  std::vector<posix::UniqueFd> listeners;
  std::uint16_t port = addresses.front().port();
  int not_here = 0;  // errno of the last address that isn't this machine's
  for (SocketAddress where : addresses) {
    where.set_port(port);
    posix::UniqueFd listener(::socket(where.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (listener) {
      // Allows to use the port of a job that has just ended; not that of a job that still listens.
      set_option(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);
      // Without it [::] would also take the connections of 0.0.0.0.
      if (addresses.size() > 1 && where.family() == AF_INET6) set_option(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
      if (::bind(listener.get(), where.get(), where.length) == 0 && ::listen(listener.get(), SOMAXCONN) == 0) {
        if (port == 0) port = local_address(listener.get()).port();
        listeners.push_back(std::move(listener));
        continue;
      }
    }
    if (errno == EADDRINUSE) {
      throw Error(Cause::refused, fmt::format("{}: the port is taken, perhaps by another job; name another port", where.print()));
    }
    if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT)
      throw system_error(Cause::refused, fmt::format("listening on {}", where.print()), errno);
    not_here = errno;
  }
  if (!listeners.empty()) return listeners;
  if (not_here == EADDRNOTAVAIL) {
    throw Error(Cause::refused,
                fmt::format("{}: {} of this machine, and node 0 must run where the rendezvous is", all_of(addresses),
                            addresses.size() == 1 ? "this address isn't one" : "none of these addresses is one"));
  }
  throw system_error(Cause::refused, fmt::format("listening on {}", all_of(addresses)), not_here);
}

posix::UniqueFd dial(const std::vector<SocketAddress>& addresses, std::uint64_t timeout_ns, const std::function<void()>& check) {
  const std::uint64_t start = posix::now_ns();
  const std::uint64_t deadline = start + timeout_ns;
  std::vector<Try> tries;
  for (const SocketAddress& where : addresses) tries.push_back({where, start + tries.size() * kHeadStart_ns});
  for (;;) {
    const std::uint64_t now = posix::now_ns();
    for (std::size_t i = 0; i < tries.size(); ++i) {
      Try& each = tries[i];
      if (!each.socket && now < each.begins_ns) continue;
      const int error = each.socket ? look(each) : begin(each, timeout_ns);
      if (error == 0) return std::move(each.socket);
      if (error == EINPROGRESS) continue;
      each.told = error;
      each.socket.reset();
      each.begins_ns = now + kPause_ns;
      if (i + 1 < tries.size()) tries[i + 1].begins_ns = std::min(tries[i + 1].begins_ns, now);
    }
    if (now >= deadline) {
      throw Error(Cause::stalled, fmt::format("nobody answered at {}: is node 0 running there?",
                                              without_answer(tries, static_cast<double>(timeout_ns) * 1e-9)));
    }
    if (check) check();
    std::vector<pollfd> watched;
    for (const Try& each : tries) {
      if (each.socket) watched.push_back({each.socket.get(), POLLOUT, 0});
    }
    ::poll(watched.data(), watched.size(), kSlice_ms);
  }
}

}  // namespace tsprun::detail::tcp
