// What the two sides of a meeting share: the packets that they exchange over an abstract socket, and its name. For meeting.cpp
// and meeting_host.cpp alone.
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

namespace tsprun::bootstrap::meeting {

using posix::UniqueFd;

inline constexpr std::uint64_t kMeetMagic = 0x7473'706d'6565'7431;  // "tspmeet1"
inline constexpr std::size_t kTextBytes = 512;
inline constexpr std::uint64_t kRetryNs = 5'000'000;
/// What a rank grants local rank 0 beyond its deadline to say who is missing.
inline constexpr std::uint64_t kGraceNs = 1'000'000'000;

/// What a rank says when it comes. One packet.
struct Hello {
  std::uint64_t magic;
  std::int32_t rank;
  std::int32_t size;
  std::int32_t local_rank;
  std::int32_t local_size;
};
static_assert(sizeof(Hello) == 24 && std::is_trivially_copyable_v<Hello>);

/// What local rank 0 answers once all came or the meeting failed. One packet; with cause none it bears the memory's descriptor.
struct Answer {
  std::uint64_t magic;
  std::uint32_t cause;  // Cause; none: welcome
  std::int32_t culprit;
  char text[kTextBytes];  // why it failed, zero-terminated
  std::int32_t pids[shm::kMaxLocalRanks];
};
static_assert(sizeof(Answer) == 16 + kTextBytes + 4 * shm::kMaxLocalRanks && std::is_trivially_copyable_v<Answer>);

/// The socket's name: abstract, so it dies with the socket. A job id too long for a socket's name is told apart by its hash.
struct Address {
  sockaddr_un value{};
  socklen_t length = 0;
  std::string name;

  explicit Address(const Identity& identity);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

UniqueFd make_socket();
/// Of the process at the other end.
ucred credentials(const UniqueFd& fd);
/// For poll: rounded up, at most a minute.
int milliseconds_until(std::uint64_t deadline);
void sleep_ns(std::uint64_t nanoseconds);
/// "30 s"
std::string seconds(std::uint64_t nanoseconds);
/// "1, 3, 4"; long lists are cut, for an error of one line.
std::string list(const std::vector<int>& numbers);

/// Local rank 0's side: collects the others, then gives all of them the memory, or all of them the reason why not.
Meeting host(const Identity& identity, std::uint64_t timeout_ns);

}  // namespace tsprun::bootstrap::meeting
