// A port for a rendezvous.
#pragma once

#include "transport/posix.h"
#include "transport/tcp/address.h"

#include <gtest/gtest.h>

#include <sys/socket.h>

namespace tsprun::detail::test {

/// Returns a port of this machine that nobody uses now.
inline int free_port() {
  tcp::SocketAddress any = tcp::resolve("127.0.0.1", 0);
  const posix::UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(::bind(socket.get(), any.get(), any.length), 0);
  return tcp::local_address(socket.get()).port();
}

}  // namespace tsprun::detail::test
