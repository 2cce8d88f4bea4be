// A port for a rendezvous.
#pragma once

#include "transport/posix.h"
#include "transport/tcp/address.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace tsprun::detail::test {

/// Returns a port of this machine that nobody uses now, that no outgoing connection is given, and that no other test gets as long
/// as this process lives: an abstract socket of its name reserves it. Threads may call it at once.
inline int free_port() {
  static std::vector<posix::UniqueFd> reserved;
  static std::mutex of_reserved;
  constexpr int kFirst = 10'000;  // below those of outgoing connections
  constexpr int kPorts = 10'000;
  for (int i = 0; i < kPorts; ++i) {
    const int port = kFirst + (static_cast<int>(::getpid()) * 7 + i) % kPorts;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = fmt::format("port-of-a-test-{}", port);
    std::ranges::copy(name, address.sun_path + 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    posix::UniqueFd mine(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(mine.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) continue;
    tcp::SocketAddress any = tcp::resolve("127.0.0.1", static_cast<std::uint16_t>(port));
    const posix::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(socket.get(), any.get(), any.length) != 0) continue;
    const std::lock_guard<std::mutex> lock(of_reserved);
    reserved.push_back(std::move(mine));
    return port;
  }
  ADD_FAILURE() << "no port is free";
  return 0;
}

}  // namespace tsprun::detail::test
