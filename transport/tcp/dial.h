// Both ends of a rendezvous whose host has several addresses, such as a name with IPv4 and IPv6 addresses. One end listens on
// all addresses that are its machine's; the other tries them side by side (RFC 8305, "Happy Eyeballs"), so that an address at
// which nobody answers doesn't use up the time of the next.
#pragma once

#include "transport/posix.h"
#include "transport/tcp/address.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace tsprun::detail::tcp {

/// Returns non-blocking sockets that listen on those of the addresses that are this machine's, all on one port; if the port is
/// 0, the kernel chooses one for the first socket. Throws Error(refused), naming the address, if none is this machine's or if a
/// port is taken.
std::vector<posix::UniqueFd> listen_on(const std::vector<SocketAddress>& addresses);

/// Returns a connected, non-blocking socket to the first of these addresses that answers. The order is one of preference: an
/// address is first tried when the one before it has failed, or hasn't answered within a quarter of a second. Failed addresses
/// are tried again until the deadline (`timeout_ns` from now), since the listener may start later. `check`, if any, is called
/// every 20 ms or more often and may throw to end the wait. Throws Error(stalled) at the deadline, with the last error of each
/// address.
posix::UniqueFd dial(const std::vector<SocketAddress>& addresses, std::uint64_t timeout_ns, const std::function<void()>& check);

/// Result of accept().
struct Accepted {
  posix::UniqueFd socket;  ///< non-blocking; empty if no connection waits, or one can't be accepted
  SocketAddress from;
  bool no_descriptor = false;  ///< a connection waits, but no file descriptor is left for it
};

/// Accepts the next connection at a listening, non-blocking socket and sets TCP_NODELAY. accept(2) fails with EMFILE even if no
/// connection waits; `no_descriptor` tells the caller when closing another descriptor would help.
Accepted accept(int listener);

/// Share of a deadline, one twelfth, for which TCP may stay silent during an outage: after an outage of nine tenths there is
/// still time for an attempt. A smaller share would let TCP give up: it ends a connection with a closed window after 15
/// unanswered probes (net.ipv4.tcp_retries2).
inline constexpr std::uint64_t kStepsOfDeadline = 12;

/// Bounds the time after which TCP sends lost data again to a twelfth of the outage that must be survived, but at least one
/// second (TCP_RTO_MAX_MS, Linux 6.15). By default TCP doubles that time with every loss, up to two minutes: after an outage of 9
/// s it would stay silent for another 4 s, and a deadline of 10 s would pass although the network works again. Returns false on
/// older kernels, for which pacing.h does it.
bool bound_retransmission(int socket, std::uint64_t outage_ns);

/// Returns true if a connected socket's other end has another address than this end: it is on another machine, or may be.
bool leaves_machine(int socket);

/// Returns true if a connected socket's other end is the socket itself. That happens where nobody listens on a port of the range
/// from which the kernel takes ports for those who connect: it may take the very port that is dialed, and TCP lets both ends open
/// the connection at once.
bool is_self_connected(int socket);

/// Sets a socket option of type int. Errors are ignored: the caller does without the option.
void set_option(int socket, int level, int option, int value);

}  // namespace tsprun::detail::tcp
