// Times the trial of a transport's row, and looks up the route to the loopback interface.
#include "launcher/transport_trial.h"

#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>

namespace tsprun::detail::launcher {

Trial try_transport(const Factory& kind, std::string_view device) {
  if (kind.lacks != nullptr) {
    if (std::string lack = kind.lacks(); !lack.empty()) return {false, std::move(lack)};
  }
  try {
    const std::uint64_t begin = posix::now_ns();
    const std::string what = kind.attempt(device);
    return {true, fmt::format("{}, {:.1f} ms in all", what, static_cast<double>(posix::now_ns() - begin) * 1e-6)};
  } catch (const Error& error) {
    return {false, error.what()};
  }
}

std::string loopback_trouble() {
  const posix::UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in anywhere{};
  anywhere.sin_family = AF_INET;
  anywhere.sin_port = htons(1);
  anywhere.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // connect() on a datagram socket sends nothing; it only looks up the route.
  if (socket && ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&anywhere), sizeof anywhere) == 0) return {};
  return fmt::format(
      "ranks that don't share memory talk over the loopback interface (127.0.0.1), which can't be used: {}; try `ip "
      "link set lo up`, or one node over shared memory",
      std::strerror(errno));
}

}  // namespace tsprun::detail::launcher
