// Derives the socket's abstract name from the job id, and prints durations and lists of ranks for errors.
#include "transport/bootstrap/meeting_packets.h"

#include "transport/cause.h"
#include "transport/checksum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <unistd.h>

namespace tsprun::detail::bootstrap::meeting {

Address::Address(const Identity& identity) {
  constexpr std::size_t kLongest = sizeof value.sun_path - 1;
  name = fmt::format("tsp-{}-{}", ::getuid(), identity.job_id);
  if (name.size() > kLongest) {
    const std::string hash = fmt::format("-{:016x}", checksum(std::as_bytes(std::span(name))));
    name = name.substr(0, kLongest - hash.size()) + hash;
  }
  value.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), value.sun_path + 1);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw system_error(Cause::refused, "making the socket over which ranks of this node meet", errno);
  return fd;
}

ucred credentials(const UniqueFd& fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    throw system_error(Cause::refused, "SO_PEERCRED", errno);
  return peer;
}

int milliseconds_until(std::uint64_t deadline) {
  const std::uint64_t now = posix::now_ns();
  return now >= deadline ? 0 : static_cast<int>(std::min<std::uint64_t>((deadline - now) / 1'000'000 + 1, 60'000));
}

std::string seconds(std::uint64_t nanoseconds) { return fmt::format("{:g} s", static_cast<double>(nanoseconds) * 1e-9); }

std::string list(const std::vector<int>& numbers) {
  constexpr std::size_t kShown = 20;
  const std::size_t shown = std::min(numbers.size(), kShown);
  std::string text = fmt::format("{}", fmt::join(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < numbers.size()) text += fmt::format(" and {} more", numbers.size() - shown);
  return text;
}

}  // namespace tsprun::detail::bootstrap::meeting
