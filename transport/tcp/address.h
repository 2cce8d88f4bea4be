// Numeric IP addresses and ports: their texts, socket addresses, and the blob by which a rank tells where it listens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <sys/socket.h>
#include <vector>

namespace tsprun::detail::tcp {

/// An IPv4 or IPv6 address with a port, as the socket calls take it. length 0: no address.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  std::uint16_t port() const;
  void set_port(std::uint16_t port);
  /// Returns true for fe80::/10. Such an address is valid on one link only, so it goes with the number of an interface, which
  /// differs from machine to machine.
  bool is_link_local() const;
  /// Gives a link-local address the interface of `here`, a link-local address of this machine on the same link. Other addresses
  /// stay as they are.
  void set_link(const SocketAddress& here);
  /// Returns the address without port: "127.0.0.1", "fd00::1", "fe80::1%eth0".
  std::string host() const;
  /// Returns address and port: "127.0.0.1:4711", "[fd00::1]:4711".
  std::string print() const;
};

/// Function with resolve_all()'s contract.
using Resolve = std::function<std::vector<SocketAddress>(const std::string& host, std::uint16_t port)>;
/// Returns all addresses of a name, the preferred one first (as getaddrinfo(3) sorts them), each once; of a numeric address,
/// that address. Throws Error(refused) naming what couldn't be resolved.
std::vector<SocketAddress> resolve_all(const std::string& host, std::uint16_t port);
/// Does the same, but asks again until the deadline, `timeout_ns` from now, while the name isn't known: in a cluster that starts
/// its machines together it may become known a little later. Logs that it waits.
std::vector<SocketAddress> resolve_within(const std::string& host, std::uint16_t port, std::uint64_t timeout_ns,
                                          const Resolve& resolve = resolve_all);
/// Returns the addresses of this machine's interfaces that are up, by which other machines may reach it: without loopback and
/// link-local ones. Throws Error(refused).
std::vector<SocketAddress> own_addresses();
/// Returns the preferred address of a name. Throws Error(refused).
SocketAddress resolve(const std::string& host, std::uint16_t port);
/// Returns the address of this end of a connected or bound socket. Throws Error(refused).
SocketAddress local_address(int socket);
/// Returns the address of the other end of a connected socket. Throws Error(refused).
SocketAddress peer_address(int socket);

/// Address of a rank's listener, as Transport::address() gives it to peers. 32 bytes on any wire.
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

/// Packs an address into a blob. The interface of a link-local address isn't packed.
AddressBlob pack(const SocketAddress& address, int rank);
/// Unpacks a blob. The result has length 0 if the blob names no address; a link-local address has no interface yet: see
/// set_link().
SocketAddress unpack(const AddressBlob& blob);

}  // namespace tsprun::detail::tcp
