// Resolves, prints and packs addresses with getaddrinfo(3) and getnameinfo(3).
#include "transport/tcp/address.h"

#include "transport/cause.h"
#include "transport/log.h"
#include "transport/posix.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <spdlog/spdlog.h>

namespace tsprun::detail::tcp {

namespace {
sockaddr_in& four(SocketAddress& address) { return reinterpret_cast<sockaddr_in&>(address.storage); }
sockaddr_in6& six(SocketAddress& address) { return reinterpret_cast<sockaddr_in6&>(address.storage); }
const sockaddr_in& four(const SocketAddress& address) { return reinterpret_cast<const sockaddr_in&>(address.storage); }
const sockaddr_in6& six(const SocketAddress& address) { return reinterpret_cast<const sockaddr_in6&>(address.storage); }
}  // namespace

std::uint16_t SocketAddress::port() const { return ntohs(family() == AF_INET6 ? six(*this).sin6_port : four(*this).sin_port); }

void SocketAddress::set_port(std::uint16_t port) {
  if (family() == AF_INET6) six(*this).sin6_port = htons(port);
  else four(*this).sin_port = htons(port);
}

bool SocketAddress::is_link_local() const { return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six(*this).sin6_addr); }

void SocketAddress::set_link(const SocketAddress& here) {
  if (is_link_local() && here.is_link_local()) six(*this).sin6_scope_id = six(here).sin6_scope_id;
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = {};
  ::getnameinfo(get(), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::string SocketAddress::print() const {
  return family() == AF_INET6 ? fmt::format("[{}]:{}", host(), port()) : fmt::format("{}:{}", host(), port());
}

std::vector<SocketAddress> resolve_all(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, [](addrinfo* each) {
    if (each != nullptr) ::freeaddrinfo(each);
  });
  if (error != 0) throw Error(Cause::refused, fmt::format("{}: no such host ({})", host, ::gai_strerror(error)));
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
    address.set_port(port);
    // /etc/hosts may list an address twice.
    const bool known = std::any_of(addresses.begin(), addresses.end(), [&](const SocketAddress& one) {
      return one.length == address.length && std::memcmp(&one.storage, &address.storage, one.length) == 0;
    });
    if (!known) addresses.push_back(address);
  }
  return addresses;
}

std::vector<SocketAddress> resolve_within(const std::string& host, std::uint16_t port, std::uint64_t timeout_ns,
                                          const Resolve& resolve) {
  constexpr std::uint64_t kPause_ns = 250'000'000;
  const double seconds = static_cast<double>(timeout_ns) * 1e-9;
  const std::uint64_t deadline = posix::now_ns() + timeout_ns;
  for (bool said = false;; said = true) {
    try {
      return resolve(host, port);
    } catch (const Error& error) {
      const std::uint64_t now = posix::now_ns();
      if (now >= deadline) throw Error(error.cause(), fmt::format("{}, within {:g} s", error.what(), seconds));
      if (!said) logger().warn("{}; asking again for up to {:g} s", error.what(), seconds);
      posix::sleep_ns(std::min(kPause_ns, deadline - now));
    }
  }
}

std::vector<SocketAddress> own_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw system_error(Cause::refused, "getifaddrs", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<SocketAddress> addresses;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address;
    address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, each->ifa_addr, address.length);
    if (!address.is_link_local()) addresses.push_back(address);
  }
  return addresses;
}

SocketAddress resolve(const std::string& host, std::uint16_t port) { return resolve_all(host, port).front(); }

SocketAddress local_address(int socket) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (::getsockname(socket, address.get(), &address.length) != 0) throw system_error(Cause::refused, "getsockname", errno);
  return address;
}

SocketAddress peer_address(int socket) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (::getpeername(socket, address.get(), &address.length) != 0) throw system_error(Cause::refused, "getpeername", errno);
  return address;
}

AddressBlob pack(const SocketAddress& address, int rank) {
  AddressBlob blob{};
  blob.magic = kAddressMagic;
  blob.family = address.family() == AF_INET6 ? 6 : 4;
  blob.port = address.port();
  if (blob.family == 6) std::memcpy(blob.ip, &six(address).sin6_addr, 16);
  else std::memcpy(blob.ip, &four(address).sin_addr, 4);
  blob.rank = rank;
  return blob;
}

SocketAddress unpack(const AddressBlob& blob) {
  SocketAddress address;
  if (blob.magic != kAddressMagic || blob.port == 0) return address;
  if (blob.family == 4) {
    four(address).sin_family = AF_INET;
    std::memcpy(&four(address).sin_addr, blob.ip, 4);
    address.length = sizeof(sockaddr_in);
  } else if (blob.family == 6) {
    six(address).sin6_family = AF_INET6;
    std::memcpy(&six(address).sin6_addr, blob.ip, 16);
    address.length = sizeof(sockaddr_in6);
  } else {
    return address;
  }
  address.set_port(blob.port);
  return address;
}

}  // namespace tsprun::detail::tcp
