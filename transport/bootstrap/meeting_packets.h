// The packets that the two sides of a meeting exchange over an abstract Unix socket, the socket's name, and helpers. Only
// meeting.cpp and meeting_host.cpp use it.
#pragma once

#include "transport/bootstrap/meeting.h"
#include "transport/posix.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <type_traits>
#include <vector>

namespace tsprun::detail::bootstrap::meeting {

using posix::UniqueFd;

inline constexpr std::uint64_t kMeetMagic = 0x7473'706d'6565'7431;  // "tspmeet1"
inline constexpr std::size_t kTextBytes = 512;
inline constexpr std::uint64_t kRetryNs = 5'000'000;
/// Time beyond the deadline that a rank gives local rank 0 to say which ranks are missing.
inline constexpr std::uint64_t kGraceNs = 1'000'000'000;

/// Packet that a rank sends when it has connected.
struct Hello {
  std::uint64_t magic;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t local_rank;
  std::int32_t local_size;
};
static_assert(sizeof(Hello) == 24 && std::is_trivially_copyable_v<Hello>);

/// Packet with which local rank 0 answers when all ranks have come or the meeting has failed. With cause `none` it carries the
/// memory's descriptor (SCM_RIGHTS).
struct Answer {
  std::uint64_t magic;
  std::uint32_t cause;  // a Cause; none: the meeting succeeded
  std::int32_t culprit;
  char text[kTextBytes];  // why the meeting failed, zero-terminated
  std::int32_t pids[shm::kMaxLocalRanks];
};
static_assert(sizeof(Answer) == 16 + kTextBytes + 4 * shm::kMaxLocalRanks && std::is_trivially_copyable_v<Answer>);

/// Address of the socket. It is abstract, so the kernel removes it with the socket. A job id too long for it is shortened and
/// made unique by its hash.
struct Address {
  sockaddr_un value{};
  socklen_t length = 0;
  std::string name;

  explicit Address(const Identity& identity);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

/// Makes a non-blocking SOCK_SEQPACKET socket. Throws Error(refused).
UniqueFd make_socket();
/// Returns the credentials of the process at the other end (SO_PEERCRED). Throws Error(refused).
ucred credentials(const UniqueFd& fd);
/// Returns the time until the deadline in milliseconds, for poll(2): rounded up, at most a minute, 0 if it has passed.
int milliseconds_until(std::uint64_t deadline);
/// Returns a duration as text: "30 s".
std::string seconds(std::uint64_t nanoseconds);
/// Returns numbers as text: "1, 3, 4". After 20 of them the rest is counted ("and 7 more"), so that an error keeps to one line.
std::string list(const std::vector<int>& numbers);

/// Runs local rank 0's side of a meeting: collects the other ranks, then gives all of them the memory, or all of them the
/// reason for the failure. Throws as meet().
Meeting host(const Identity& identity, std::uint64_t timeout_ns, const OtherNodes& others);

}  // namespace tsprun::detail::bootstrap::meeting
