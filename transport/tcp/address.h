// Numeric IP addresses and ports: texts, socket addresses, and the blob by which a rank tells where it listens.
#pragma once

#include <cstdint>
#include <string>
#include <sys/socket.h>
#include <vector>

namespace tsprun::tcp {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  std::uint16_t port() const;
  void set_port(std::uint16_t port);
  /// fe80::/10: valid on one link alone, so that an interface goes with it, which each machine numbers in its own way.
  bool is_link_local() const;
  /// A link-local address gets the interface of `here`, an address of this machine on the same link.
  void set_link(const SocketAddress& here);
  /// "127.0.0.1", "fd00::1", "fe80::1%eth0".
  std::string host() const;
  /// "127.0.0.1:4711", "[fd00::1]:4711".
  std::string print() const;
};

/// All addresses of a name, the preferred one first (as getaddrinfo sorts them), none twice; of a numeric address itself. Throws
/// Error(refused) naming what couldn't be resolved.
std::vector<SocketAddress> resolve_all(const std::string& host, std::uint16_t port);
/// The preferred one.
SocketAddress resolve(const std::string& host, std::uint16_t port);
/// This end of a connected or bound socket. Throws Error(refused).
SocketAddress local_address(int socket);
/// The other end of a connected one. Throws Error(refused).
SocketAddress peer_address(int socket);

/// How to reach a rank's listener. 32 bytes on any wire.
struct AddressBlob {
  std::uint32_t magic;
  std::uint16_t family;  ///< 4 or 6
  std::uint16_t port;
  std::uint8_t ip[16];
  std::int32_t rank;
  std::uint32_t padding;
};
static_assert(sizeof(AddressBlob) == 32);
inline constexpr std::uint32_t kAddressMagic = 0x61505354;  // "TSPa"

AddressBlob pack(const SocketAddress& address, int rank);
/// Length 0 if the blob names no address. Of a link-local one the interface is missing: see set_link().
SocketAddress unpack(const AddressBlob& blob);

}  // namespace tsprun::tcp
