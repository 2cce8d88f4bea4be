// Transport over TCP sockets: for machines without RDMA, and for ranks that must not share memory.
//
// Each pair of ranks has one non-blocking connection; the higher rank dials. Its ends prove the job's secret before it carries
// a lane, with TLS if the options say so (tls/channel.h). All sockets are in one epoll set, on which a sleeping rank waits.
// There are no views.
#pragma once

#include "transport/bootstrap/refusal_log.h"
#include "transport/endpoint.h"
#include "transport/posix.h"
#include "transport/tcp/address.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/pacing.h"
#include "transport/tls/channel.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tsprun::detail::tcp {

/// Parameters of a rank's TCP transport.
struct TcpOptions {
  int rank = 0;
  int world_size = 1;
  std::string host = "127.0.0.1";  ///< local address to listen on; peers must be able to reach it
  bootstrap::Secret secret;
  bool tls = false;
  std::uint64_t timeout_ns = 30'000'000'000;     ///< unacknowledged data or an unfinished handshake is given up after this time
  PayloadCheck* check = &PayloadCheck::plain();  ///< of every payload that arrives; borrowed
};

/// Transport over TCP; see endpoint.h and transport.h for the calls.
class TcpTransport final : public Endpoint {
 public:
  /// Listens for peers, which are numbered by their rank in the world. Throws Error(refused) naming the address that can't be
  /// bound.
  explicit TcpTransport(const TcpOptions& options);
  ~TcpTransport() override;

  std::vector<std::byte> address(int peer) override;
  Reach can_reach(int peer, std::span<const std::byte> address) const override;
  void connect(int peer, std::span<const std::byte> address) override;
  bool connected(int peer) override;
  std::string broken(int peer) const override;

  void register_memory(std::span<std::byte>) override {}
  std::size_t plain_limit() const override { return kEagerBytes; }
  bool can_send_from(std::span<const std::byte>) const override { return true; }
  bool can_receive_into(std::span<const std::byte>) const override { return true; }
  bool checks_payloads() const override { return true; }

  Ticket send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload, Delivery delivery) override;
  Outcome test_send(LaneId lane, Ticket ticket) override;
  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override;
  Outcome test_receive(LaneId lane, Ticket ticket) override;
  Found found(LaneId lane) const override;

  bool progress() override;
  std::uint64_t arm() override;
  int descriptor() const override { return epoll_.get(); }
  bool close(int peer) override;
  bool parted(int peer) const override;
  std::optional<Found> unreceived(LaneId lane) const override;
  const TrafficCounters& counters() const override { return counters_; }

 private:
  /// A socket whose other end hasn't yet proved that it knows the secret.
  struct Joining {
    tls::Channel channel;
    int peer = -1;                  ///< rank that this end dialed; -1: the socket was accepted
    std::uint64_t deadline_ns = 0;  ///< for all if this end dialed, else for the greeting
    bool room_wanted = false;
    SocketAddress where{};  ///< address that this end dialed
    std::string address{};  ///< address of the other end if it was accepted, for the log
  };

  Connection& peer(int rank) const;
  void watch(int descriptor, std::uint64_t token, bool for_room) const;
  int dial(int peer_rank, const SocketAddress& where, std::uint64_t deadline_ns);
  void accept_strangers();
  void make_room(bool no_descriptors);
  void pump(std::uint64_t id);
  void shake(std::uint64_t id);
  void lost(std::uint64_t id, int error);
  void give_up(std::uint64_t id, const std::string& why);
  void admit(std::uint64_t id);
  std::uint64_t end_ns(const Joining& joining) const;
  void expire();

  TcpOptions options_;
  TrafficCounters counters_;
  posix::UniqueFd epoll_;
  posix::UniqueFd listener_;
  std::vector<std::unique_ptr<Connection>> peers_;  ///< by rank; null at this rank's own place
  std::map<std::uint64_t, Joining> joining_;
  std::uint64_t next_id_ = 0;
  bootstrap::RefusalLog refusals_;
  PacingThread pacing_;  ///< last: it uses the sockets
};

}  // namespace tsprun::detail::tcp
