#include "transport/bootstrap/meeting.h"

#include "transport/cause.h"
#include "transport/machine.h"
#include "transport/posix.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <type_traits>
#include <unistd.h>
#include <utility>

namespace tsp::bootstrap {

namespace {

using posix::UniqueFd;

constexpr std::uint64_t kMagic = 0x7473'706d'6565'7431;  // "tspmeet1"
constexpr std::size_t kTextBytes = 512;
constexpr std::uint64_t kRetryNs = 5'000'000;
/// What a rank grants local rank 0 beyond its deadline to say who is missing.
constexpr std::uint64_t kGraceNs = 1'000'000'000;

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

  explicit Address(const Identity& identity) {
    constexpr std::size_t kLongest = sizeof value.sun_path - 1;
    name = fmt::format("tsp-{}-{}", ::getuid(), identity.job_id);
    if (name.size() > kLongest) {
      const std::string hash = fmt::format("-{:016x}", XXH3_64bits(name.data(), name.size()));
      name = name.substr(0, kLongest - hash.size()) + hash;
    }
    value.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), value.sun_path + 1);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

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

void sleep_ns(std::uint64_t nanoseconds) {
  const timespec duration{0, static_cast<long>(nanoseconds)};
  ::nanosleep(&duration, nullptr);
}

std::string seconds(std::uint64_t nanoseconds) { return fmt::format("{:g} s", static_cast<double>(nanoseconds) * 1e-9); }

/// "1, 3, 4"; long lists are cut, for an error of one line.
std::string list(const std::vector<int>& numbers) {
  constexpr std::size_t kShown = 20;
  const std::size_t shown = std::min(numbers.size(), kShown);
  std::string text = fmt::format("{}", fmt::join(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < numbers.size()) text += fmt::format(" and {} more", numbers.size() - shown);
  return text;
}

// --- local rank 0 ------------------------------------------------------------------------------------------------------------

/// Local rank 0's side: collects the others, then gives all of them the memory, or all of them the reason why not.
class Host {
 public:
  Host(const Identity& identity, std::uint64_t timeout_ns)
      : identity_(identity), timeout_ns_(timeout_ns), guests_(static_cast<std::size_t>(identity.local_size)) {}

  Meeting hold() {
    listen();
    try {
      collect();
      shm::NodeLayout layout;
      layout.local_ranks = static_cast<std::uint32_t>(identity_.local_size);
      layout.heap_bytes = shm::default_heap_bytes();
      layout.first_rank = static_cast<std::uint32_t>(identity_.rank - identity_.local_rank);
      layout.world_size = static_cast<std::uint32_t>(identity_.size);
      layout.timeout_ns = timeout_ns_;
      layout.cores = static_cast<std::uint32_t>(machine::usable_cores());
      Meeting meeting{shm::NodeMemory::create_posix(layout), pids()};
      answer(Cause::none, -1, {}, meeting.memory.descriptor());
      return meeting;
    } catch (const Error& error) {
      answer(error.cause(), error.rank(), error.what(), -1);
      throw;
    }
  }

 private:
  struct Guest {
    UniqueFd socket;
    int pid = 0;
  };

  void listen() {
    const Address address(identity_);
    listener_ = make_socket();
    if (::bind(listener_.get(), address.get(), address.length) != 0) {
      if (errno != EADDRINUSE)
        throw system_error(Cause::refused, fmt::format("binding the abstract socket {}", address.name), errno);
      throw Error(Cause::refused,
                  fmt::format("another job on this machine is starting under the job id {} of {}: jobs of one user need "
                              "different ids (the abstract socket {} is taken)",
                              identity_.job_id, identity_.starter, address.name));
    }
    if (::listen(listener_.get(), identity_.local_size) != 0) throw system_error(Cause::refused, "listen", errno);
  }

  int missing() const {
    return static_cast<int>(std::count_if(guests_.begin() + 1, guests_.end(), [](const Guest& guest) { return !guest.socket; }));
  }

  void collect() {
    const std::uint64_t deadline = posix::now_ns() + timeout_ns_;
    while (missing() > 0) {
      std::vector<pollfd> watched{{listener_.get(), POLLIN, 0}};
      for (const Guest& stranger : strangers_) watched.push_back({stranger.socket.get(), POLLIN, 0});
      const std::size_t first_guest = watched.size();
      // A descriptor of -1 (not here yet) is skipped by poll.
      for (const Guest& guest : guests_) watched.push_back({guest.socket.get(), POLLIN, 0});

      const int ready = ::poll(watched.data(), watched.size(), milliseconds_until(deadline));
      if (ready < 0 && errno != EINTR) throw system_error(Cause::refused, "poll", errno);
      if (ready <= 0) {
        if (posix::now_ns() >= deadline) throw_missing();
        continue;
      }
      // Who has come says nothing more, so anything that is heard of a guest is its end.
      for (std::size_t i = first_guest; i < watched.size(); ++i) {
        if (watched[i].revents != 0) throw_left(static_cast<int>(i - first_guest));
      }
      for (std::size_t i = first_guest - 1; i >= 1; --i) {
        if (watched[i].revents != 0) greet(i - 1);
      }
      if (watched[0].revents != 0) let_in();
    }
  }

  void let_in() {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE) throw system_error(Cause::refused, "accepting a rank of this node", errno);
      return;  // gone again, or interrupted
    }
    const ucred peer = credentials(socket);
    if (peer.uid != ::getuid()) return;
    strangers_.push_back({std::move(socket), peer.pid});
  }

  /// Hears a stranger out: it becomes a guest, or is dropped if it is none of us.
  void greet(std::size_t index) {
    Guest stranger = std::move(strangers_[index]);
    strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(index));
    Hello hello{};
    const ssize_t got = ::recv(stranger.socket.get(), &hello, sizeof hello, MSG_TRUNC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      strangers_.push_back(std::move(stranger));
      return;
    }
    if (got != static_cast<ssize_t>(sizeof hello) || hello.magic != kMagic) return;
    const int pid = stranger.pid;
    if (hello.size != identity_.size || hello.local_size != identity_.local_size) {
      strangers_.push_back(std::move(stranger));
      throw Error(Cause::refused,
                  fmt::format("sizes disagree: rank 0 (pid {}) was told {} ranks, {} of them on this node; rank {} (pid {}) "
                              "was told {}, {}. Do two jobs share the job id {}?",
                              ::getpid(), identity_.size, identity_.local_size, hello.rank, pid, hello.size, hello.local_size,
                              identity_.job_id));
    }
    if (hello.local_rank < 0 || hello.local_rank >= identity_.local_size || hello.rank != first_rank() + hello.local_rank) {
      strangers_.push_back(std::move(stranger));
      throw Error(Cause::refused,
                  fmt::format("pid {} came as rank {}, local rank {}: ranks {} to {} with local ranks 0 to {} belong here", pid,
                              hello.rank, hello.local_rank, first_rank(), first_rank() + identity_.local_size - 1,
                              identity_.local_size - 1));
    }
    Guest& place = guests_[static_cast<std::size_t>(hello.local_rank)];
    if (hello.local_rank == 0 || place.socket) {
      strangers_.push_back(std::move(stranger));
      throw Error(Cause::refused,
                  fmt::format("rank {} came twice, as pids {} and {}: do two jobs share the job id {} of {}?", hello.rank,
                              hello.local_rank == 0 ? ::getpid() : place.pid, pid, identity_.job_id, identity_.starter),
                  hello.rank);
    }
    place = std::move(stranger);
  }

  [[noreturn]] void throw_missing() const {
    std::vector<int> absent;
    for (int i = 1; i < identity_.local_size; ++i) {
      if (!guests_[static_cast<std::size_t>(i)].socket) absent.push_back(i);
    }
    throw Error(
        Cause::stalled,
        fmt::format(
            "local rank{} {} of {} didn't come within {} (job id {} of {}): were {} started on this machine, by this user?",
            absent.size() == 1 ? "" : "s", list(absent), identity_.local_size, seconds(timeout_ns_), identity_.job_id,
            identity_.starter, absent.size() == 1 ? "it" : "they"),
        first_rank() + absent.front());
  }

  [[noreturn]] void throw_left(int local_rank) const {
    throw Error(Cause::exited,
                fmt::format("local rank {} (pid {}) ended before all ranks of this node had met", local_rank,
                            guests_[static_cast<std::size_t>(local_rank)].pid),
                first_rank() + local_rank);
  }

  std::vector<int> pids() const {
    std::vector<int> result{::getpid()};
    for (std::size_t i = 1; i < guests_.size(); ++i) result.push_back(guests_[i].pid);
    return result;
  }

  /// To all who came. One who is gone by now is no reason to fail here: its end is found by those who wait for it.
  void answer(Cause cause, int culprit, std::string_view text, int descriptor) {
    Answer message{};
    message.magic = kMagic;
    message.cause = static_cast<std::uint32_t>(cause);
    message.culprit = culprit;
    text = text.substr(0, kTextBytes - 1);
    std::copy(text.begin(), text.end(), message.text);
    const std::vector<int> numbers = pids();
    std::copy(numbers.begin(), numbers.end(), message.pids);

    iovec part{&message, sizeof message};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (descriptor >= 0) {
      header.msg_control = control;
      header.msg_controllen = sizeof control;
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    }
    for (const std::vector<Guest>* crowd : {&guests_, &strangers_}) {
      for (const Guest& guest : *crowd) {
        if (guest.socket && (crowd == &guests_ || cause != Cause::none)) ::sendmsg(guest.socket.get(), &header, MSG_NOSIGNAL);
      }
    }
  }

  int first_rank() const { return identity_.rank - identity_.local_rank; }

  const Identity& identity_;
  std::uint64_t timeout_ns_;
  UniqueFd listener_;
  std::vector<Guest> guests_;     // by local rank; 0 stays empty
  std::vector<Guest> strangers_;  // connected, but not yet heard
};

// --- the other local ranks ---------------------------------------------------------------------------------------------------

UniqueFd reach_host(const Identity& identity, std::uint64_t timeout_ns) {
  const Address address(identity);
  const std::uint64_t deadline = posix::now_ns() + timeout_ns;
  for (;;) {
    UniqueFd socket = make_socket();
    if (::connect(socket.get(), address.get(), address.length) == 0) {
      if (credentials(socket).uid != ::getuid()) {
        throw Error(Cause::refused,
                    fmt::format("the abstract socket {} belongs to another user: local rank 0 can't be there", address.name));
      }
      return socket;
    }
    // ECONNREFUSED: nobody listens there yet. EAGAIN: many ranks come at once.
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
      throw system_error(Cause::refused, fmt::format("connecting to the abstract socket {}", address.name), errno);
    }
    if (posix::now_ns() >= deadline) {
      throw Error(
          Cause::stalled,
          fmt::format("local rank 0 of {} didn't come within {} (job id {} of {}): was it started on this machine, by this user?",
                      identity.local_size, seconds(timeout_ns), identity.job_id, identity.starter),
          identity.rank - identity.local_rank);
    }
    sleep_ns(kRetryNs);
  }
}

[[noreturn]] void throw_host_gone(const Identity& identity) {
  throw Error(Cause::exited, "local rank 0 ended before all ranks of this node had met", identity.rank - identity.local_rank);
}

/// Receives the answer, and the descriptor that may come with it.
UniqueFd receive_answer(const UniqueFd& socket, const Identity& identity, std::uint64_t timeout_ns, Answer& message) {
  // Local rank 0 came before this connection was made, so it gives up before this deadline and says who is missing.
  const std::uint64_t deadline = posix::now_ns() + timeout_ns + kGraceNs;
  for (;;) {
    pollfd watched{socket.get(), POLLIN, 0};
    const int ready = ::poll(&watched, 1, milliseconds_until(deadline));
    if (ready < 0 && errno != EINTR) throw system_error(Cause::refused, "poll", errno);
    if (ready > 0) break;
    if (posix::now_ns() >= deadline) {
      throw Error(Cause::stalled,
                  fmt::format("local rank 0 is there, but didn't answer within {}", seconds(timeout_ns + kGraceNs)),
                  identity.rank - identity.local_rank);
    }
  }
  iovec part{&message, sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  UniqueFd descriptor;
  for (cmsghdr* rights = CMSG_FIRSTHDR(&header); rights != nullptr; rights = CMSG_NXTHDR(&header, rights)) {
    if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS || rights->cmsg_len != CMSG_LEN(sizeof(int)))
      continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    descriptor = UniqueFd(fd);
  }
  if (got <= 0) throw_host_gone(identity);
  if (got != static_cast<ssize_t>(sizeof message) || (header.msg_flags & MSG_TRUNC) != 0 || message.magic != kMagic) {
    throw Error(Cause::refused,
                fmt::format("local rank 0 answered {} bytes that aren't understood, {} were expected: build all ranks from the "
                            "same version",
                            got, sizeof message));
  }
  return descriptor;
}

Meeting visit(const Identity& identity, std::uint64_t timeout_ns) {
  const UniqueFd socket = reach_host(identity, timeout_ns);
  const Hello hello{kMagic, identity.rank, identity.size, identity.local_rank, identity.local_size};
  // A new connection's buffer holds far more than this packet, so it goes out whole or not at all. If local rank 0 closed
  // already, its last words are still to be read.
  if (::send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET) {
    throw system_error(Cause::refused, "greeting local rank 0", errno);
  }
  Answer message{};
  UniqueFd descriptor = receive_answer(socket, identity, timeout_ns, message);
  if (message.cause != 0) {
    message.text[kTextBytes - 1] = '\0';
    const bool known = message.cause <= 0xff && is_cause(static_cast<std::uint8_t>(message.cause));
    throw Error(known ? static_cast<Cause>(message.cause) : Cause::refused, message.text, message.culprit);
  }
  if (!descriptor) {
    throw Error(Cause::refused,
                "local rank 0 sent the node's memory, but no descriptor could be received: is `ulimit -n` reached?");
  }
  Meeting meeting{shm::NodeMemory::attach(std::move(descriptor)), {}};
  const shm::NodeLayout& layout = meeting.memory.layout();
  if (layout.local_ranks != static_cast<std::uint32_t>(identity.local_size) ||
      layout.world_size != static_cast<std::uint32_t>(identity.size)) {
    throw Error(Cause::refused, fmt::format("the node's memory is for {} of {} ranks, this rank was told {} of {}",
                                            layout.local_ranks, layout.world_size, identity.local_size, identity.size));
  }
  meeting.pids.assign(std::begin(message.pids), std::begin(message.pids) + identity.local_size);
  return meeting;
}

}  // namespace

Meeting meet(const Identity& identity, std::uint64_t timeout_ns) {
  if (identity.local_size != identity.size) {
    throw Error(Cause::refused, fmt::format("{} started {} ranks, {} of them on this node: all must be on one node",
                                            identity.starter, identity.size, identity.local_size));
  }
  if (identity.local_size > shm::kMaxLocalRanks) {
    throw Error(Cause::refused, fmt::format("{} ranks on one node: 1 to {} work", identity.local_size, shm::kMaxLocalRanks));
  }
  return identity.local_rank == 0 ? Host(identity, timeout_ns).hold() : visit(identity, timeout_ns);
}

}  // namespace tsp::bootstrap
