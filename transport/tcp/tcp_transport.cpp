// Accepts, proves and admits connections in one epoll set; messages are in connection.cpp.
#include "transport/tcp/tcp_transport.h"

#include "transport/cause.h"
#include "transport/tcp/address.h"
#include "transport/tcp/dial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace tsprun::detail::tcp {

namespace {

/// Tokens of the epoll set: of the listener, of sockets in their handshake (plus an id), of peers (plus the rank).
constexpr std::uint64_t kListener = 0;
constexpr std::uint64_t kJoiningBase = std::uint64_t{1} << 62;
constexpr std::uint64_t kPeerBase = std::uint64_t{1} << 61;

/// Limits for accepted sockets before their proof: how long they may be silent; how much longer those may take that have sent a
/// valid greeting and whose machine may be busy (at most the job's timeout); how many may wait silently (those that have greeted
/// have as many places more as there are ranks); how many are accepted in one round of progress, so that peers are served in
/// between.
constexpr std::uint64_t kSilence_ns = 5'000'000'000;
constexpr std::uint64_t kProof_ns = 55'000'000'000;
constexpr std::size_t kMostStrangers = 64;
constexpr int kAcceptAtOnce = 16;
constexpr int kEvents = 64;

/// Makes the kernel notice that a peer's machine is gone: by keep-alive probes if nothing is sent, else within the job's
/// deadline (TCP_USER_TIMEOUT). Not for peers on this machine, which can't vanish so; a whole job may be stopped for a while,
/// and the kernel would then end connections with unsent data.
void set_patience(int socket, std::uint64_t timeout_ns) {
  if (!leaves_machine(socket)) return;
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  const auto milliseconds = static_cast<int>(std::clamp<std::uint64_t>(timeout_ns / 1'000'000, 4'000, 3'600'000));
  const int seconds = milliseconds / 1000;
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 8));
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, milliseconds);
}

}  // namespace

TcpTransport::TcpTransport(const TcpOptions& options)
    : options_(options),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      refusals_(fmt::format("rank {}: tcp", options.rank)),
      pacing_(options.timeout_ns) {
  if (!epoll_) throw system_error(Cause::refused, "tcp: epoll_create", errno);
  SocketAddress here = resolve(options.host, 0);
  listener_ = posix::UniqueFd(::socket(here.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener_ || ::bind(listener_.get(), here.get(), here.length) != 0 || ::listen(listener_.get(), SOMAXCONN) != 0) {
    throw system_error(Cause::refused, fmt::format("tcp: listening on {}", options.host), errno);
  }
  watch(listener_.get(), kListener, false);
  peers_.resize(static_cast<std::size_t>(options.world_size));
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (rank == options.rank) continue;
    peers_[static_cast<std::size_t>(rank)] = std::make_unique<Connection>(rank, *options.check, counters_, pacing_);
  }
}

TcpTransport::~TcpTransport() = default;

void TcpTransport::watch(int descriptor, std::uint64_t token, bool for_room) const {
  epoll_event event{.events = EPOLLIN | (for_room ? EPOLLOUT : 0U), .data = {.u64 = token}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0 &&
      (errno != EEXIST || ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, descriptor, &event) != 0)) {
    throw system_error(Cause::refused, "tcp: epoll_ctl", errno);
  }
}

Connection& TcpTransport::peer(int rank) const {
  assert(rank >= 0 && rank < options_.world_size && rank != options_.rank);
  return *peers_[static_cast<std::size_t>(rank)];
}

// --- reaching peers ----------------------------------------------------------------------------------------------------------

std::vector<std::byte> TcpTransport::address(int /*peer*/) {
  const AddressBlob blob = pack(local_address(listener_.get()), options_.rank);
  const auto* bytes = reinterpret_cast<const std::byte*>(&blob);
  return {bytes, bytes + sizeof blob};
}

Reach TcpTransport::can_reach(int peer, std::span<const std::byte> address) const {
  AddressBlob blob{};
  if (address.size() != sizeof blob) return {false, fmt::format("its tcp address has {} bytes, not 32", address.size())};
  std::memcpy(&blob, address.data(), sizeof blob);
  const SocketAddress where = unpack(blob);
  if (where.length == 0 || blob.rank != peer) return {false, fmt::format("its tcp address isn't one of rank {}", peer)};
  return {true, fmt::format("tcp to {}", where.host())};
}

void TcpTransport::connect(int peer_rank, std::span<const std::byte> address) {
  if (const Reach reach = can_reach(peer_rank, address); !reach.possible)
    throw Error(Cause::refused, fmt::format("tcp: rank {}: {}", peer_rank, reach.why), peer_rank);
  if (options_.rank < peer_rank) return;  // the higher rank dials
  AddressBlob blob{};
  std::memcpy(&blob, address.data(), sizeof blob);
  SocketAddress where = unpack(blob);
  where.set_link(local_address(listener_.get()));
  const std::uint64_t id = next_id_;
  if (const int error = dial(peer_rank, where, posix::now_ns() + options_.timeout_ns); error != 0)
    throw system_error(Cause::disconnected, fmt::format("tcp: connecting to rank {} at {}", peer_rank, where.print()), error);
  pump(id);  // greets at once, so that the peer can tell it from strangers
}

/// Begins to connect to a peer. Returns 0, or the errno of the failure. Throws Error(refused) if no socket can be made.
int TcpTransport::dial(int peer_rank, const SocketAddress& where, std::uint64_t deadline_ns) {
  posix::UniqueFd socket(::socket(where.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error(Cause::refused, "tcp: socket", errno);
  set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  bound_retransmission(socket.get(), 0);
  if (::connect(socket.get(), where.get(), where.length) != 0 && errno != EINPROGRESS) return errno;
  const std::uint64_t id = next_id_++;
  watch(socket.get(), kJoiningBase + id, true);
  joining_.emplace(id, Joining{.channel = tls::Channel::connector(std::move(socket), {options_.secret, options_.tls},
                                                                  bootstrap::ConnectionUse::lanes, options_.rank, peer_rank),
                               .peer = peer_rank,
                               .deadline_ns = deadline_ns,
                               .room_wanted = true,
                               .where = where});
  return 0;
}

bool TcpTransport::connected(int rank) {
  progress();
  return peer(rank).met();
}

std::string TcpTransport::broken(int rank) const { return peer(rank).live() ? "" : peer(rank).found(Stream::control).detail; }

void TcpTransport::accept_strangers() {
  for (int i = 0; i < kAcceptAtOnce; ++i) {
    Accepted arrival = accept(listener_.get());
    if (!arrival.socket) {
      if (arrival.no_descriptor) make_room(true);
      return;
    }
    make_room(false);
    const std::uint64_t id = next_id_++;
    try {
      watch(arrival.socket.get(), kJoiningBase + id, false);
      joining_.emplace(id, Joining{.channel = tls::Channel::acceptor(std::move(arrival.socket), {options_.secret, options_.tls},
                                                                     bootstrap::ConnectionUse::lanes, options_.rank),
                                   .deadline_ns = posix::now_ns() + std::min(kSilence_ns, options_.timeout_ns),
                                   .address = arrival.from.print()});
    } catch (const Error& error) {
      refusals_.refused(arrival.from.print(), error.what());
      continue;
    }
    pump(id);  // a rank has sent its greeting by now
  }
}

/// Makes room for one more accepted socket: if too many wait for their proof, or no descriptor is left, drops the oldest.
/// Silent strangers never displace those that have sent a valid greeting.
void TcpTransport::make_room(bool no_descriptors) {
  for (const bool greeted : {false, true}) {
    const auto is_one = [greeted](const auto& each) { return each.second.peer < 0 && each.second.channel.greeted() == greeted; };
    const std::size_t most = kMostStrangers + (greeted ? peers_.size() : 0);
    const auto count = static_cast<std::size_t>(std::ranges::count_if(joining_, is_one));
    if (count == 0 || (count < most && !no_descriptors)) continue;
    give_up(std::ranges::find_if(joining_, is_one)->first,
            no_descriptors ? "no file descriptor is left" : "too many try at once");
    if (no_descriptors) return;
  }
}

/// Moves a handshake as far as the socket allows. What goes wrong, for example for want of file descriptors, fails that
/// connection alone: progress() throws nothing because of it.
void TcpTransport::pump(std::uint64_t id) {
  try {
    shake(id);
  } catch (const Error& error) {
    give_up(id, error.what());
  }
}

/// Does the work of pump(). If it throws, the handshake is still in joining_.
void TcpTransport::shake(std::uint64_t id) {
  const auto found = joining_.find(id);
  if (found == joining_.end()) return;
  Joining& joining = found->second;
  if (!joining.channel.shake()) {
    if (joining.channel.refusal().empty()) lost(id, joining.channel.error());
    else give_up(id, joining.channel.refusal());
    return;
  }
  if (joining.channel.ready()) return admit(id);
  if (const bool for_room = joining.channel.has_to_send(); for_room != joining.room_wanted) {
    joining.room_wanted = for_room;
    watch(joining.channel.descriptor(), kJoiningBase + id, for_room);
  }
}

void TcpTransport::admit(std::uint64_t id) {
  Joining& joining = joining_.at(id);
  const int rank = joining.channel.peer();
  const bool welcome = joining.peer >= 0 ? rank == joining.peer
                                         : rank > options_.rank && rank < options_.world_size &&
                                               joining.channel.sought() == options_.rank && !peer(rank).live();
  if (!welcome || peer(rank).failed()) {
    refusals_.refused(joining.address, fmt::format("it says that it is rank {}", rank));
    joining_.erase(id);
    return;
  }
  set_patience(joining.channel.descriptor(), options_.timeout_ns);
  const std::uint64_t token = kPeerBase + static_cast<std::uint64_t>(rank);
  watch(joining.channel.descriptor(), token, false);
  pacing_.add(joining.channel.descriptor());
  peer(rank).start(std::move(joining_.extract(id).mapped().channel), epoll_.get(), token);
}

/// Handles the end of a socket during its handshake; `error` is its errno, 0 if the other end closed it. Dials again if the
/// peer seems to have taken this end for a stranger.
void TcpTransport::lost(std::uint64_t id, int error) {
  const Joining& joining = joining_.at(id);
  const bool turned_away = error == 0 || error == ECONNRESET || error == EPIPE;
  if (joining.peer >= 0 && turned_away && posix::now_ns() < joining.deadline_ns) {
    // The peer may have dropped this end as one stranger too many. If it has ended instead, dialing fails.
    error = dial(joining.peer, joining.where, joining.deadline_ns);
    if (error == 0) {
      joining_.erase(id);
      return;
    }
  }
  give_up(id, error == 0 ? "it closed the connection" : std::strerror(error));
}

void TcpTransport::give_up(std::uint64_t id, const std::string& why) {
  const auto node = joining_.extract(id);
  const int rank = node.mapped().peer;
  if (rank >= 0) peer(rank).fail(Outcome::disconnected, fmt::format("connecting to rank {}: {}", rank, why));
  else refusals_.refused(node.mapped().address, why);
}

/// Returns when a handshake is given up.
std::uint64_t TcpTransport::end_ns(const Joining& joining) const {
  return joining.deadline_ns + (joining.peer < 0 && joining.channel.greeted() ? std::min(kProof_ns, options_.timeout_ns) : 0);
}

/// Gives up handshakes that take too long.
void TcpTransport::expire() {
  const std::uint64_t now = posix::now_ns();
  for (auto each = joining_.begin(); each != joining_.end();) {
    const auto next = std::next(each);
    if (end_ns(each->second) <= now) give_up(each->first, "it didn't prove itself in time");
    each = next;
  }
}

// --- lanes -------------------------------------------------------------------------------------------------------------------

Ticket TcpTransport::send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload, Delivery) {
  return peer(lane.peer).send(lane.stream, envelope, payload);
}

Outcome TcpTransport::test_send(LaneId lane, Ticket ticket) { return peer(lane.peer).test_send(lane.stream, ticket); }

Ticket TcpTransport::receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) {
  return peer(lane.peer).receive(lane.stream, envelope, into);
}

Outcome TcpTransport::test_receive(LaneId lane, Ticket ticket) { return peer(lane.peer).test_receive(lane.stream, ticket); }

Found TcpTransport::found(LaneId lane) const { return peer(lane.peer).found(lane.stream); }

// --- progress ----------------------------------------------------------------------------------------------------------------

bool TcpTransport::progress() {
  epoll_event events[kEvents];
  const int count = ::epoll_wait(epoll_.get(), events, kEvents, 0);
  bool any = false;
  bool someone_came = false;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t token = events[i].data.u64;
    if (token == kListener) {
      someone_came = true;
    } else if (token >= kJoiningBase) {
      pump(token - kJoiningBase);
    } else {
      Connection& connection = peer(static_cast<int>(token - kPeerBase));
      if ((events[i].events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) any = connection.read() || any;
      if ((events[i].events & EPOLLOUT) != 0) any = connection.write() || any;
    }
  }
  if (someone_came) accept_strangers();  // last, so that waiting sockets are heard before a new one could displace them
  if (!joining_.empty()) expire();
  refusals_.tick();
  return any;
}

std::uint64_t TcpTransport::arm() {
  std::uint64_t first = kNoDeadline;
  for (const auto& [id, joining] : joining_) first = std::min(first, end_ns(joining));
  return first;
}

bool TcpTransport::close(int rank) { return peer(rank).close(); }

bool TcpTransport::parted(int rank) const { return peer(rank).parted(); }

std::optional<Found> TcpTransport::unreceived(LaneId lane) const { return peer(lane.peer).unreceived(lane.stream); }

}  // namespace tsprun::detail::tcp
