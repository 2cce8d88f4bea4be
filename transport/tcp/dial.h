// Both ends of a rendezvous whose host has several addresses, as a name does on a machine with IPv4 and IPv6: the one end listens
// on all that are its machine's, the other tries them side by side (RFC 8305, "Happy Eyeballs"), for one that nobody answers at
// must not use up the time of the next.
#pragma once

#include "transport/posix.h"
#include "transport/tcp/address.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace tsprun::tcp {

/// Non-blocking sockets that listen on those of these addresses that are this machine's, all on one port; where that is 0 the
/// first chooses it. Throws Error(refused) if none is, or if the port of one is taken, naming the address.
std::vector<posix::UniqueFd> listen_on(const std::vector<SocketAddress>& addresses);

/// A connected, non-blocking socket to the first of these addresses that answers. Each is tried again and again until the
/// deadline, for it may be that nobody listens there yet; their order is of preference: a later one starts when an earlier one
/// has failed, or hasn't answered within a quarter of a second. `check`, if any, is called now and then and may throw to end the
/// wait. Throws Error(stalled) at the deadline, with what the last finished try of each address ended with.
posix::UniqueFd dial(const std::vector<SocketAddress>& addresses, std::uint64_t timeout_ns, const std::function<void()>& check);

/// What a listener has.
struct Arrival {
  posix::UniqueFd socket;  ///< non-blocking; none if nobody is at the door, or somebody can't be let in
  SocketAddress from;
  bool no_descriptor = false;  ///< somebody is at the door, but no file descriptor is left
};

/// The next connection at a listening, non-blocking socket, with TCP_NODELAY. accept(2) fails with EMFILE whether or not somebody
/// is at the door: who makes room must know.
Arrival accept(int listener);

/// What was lost is sent again every second at least. By itself TCP doubles that time with every loss, up to two minutes: after
/// an outage of 9 s it would be silent for some 4 s more, and a deadline of 10 s would pass though the way is whole again. Needs
/// Linux 6.15; an older one does without it.
void bound_retransmission(int socket);

/// Of a socket, an option that is an int; one that can't be set is done without.
void set_option(int socket, int level, int option, int value);

}  // namespace tsprun::tcp
