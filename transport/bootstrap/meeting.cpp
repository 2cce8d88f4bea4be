// The side of local ranks other than 0 in a meeting: they connect to local rank 0, send their place, and wait for its answer.
#include "transport/bootstrap/meeting.h"

#include "transport/bootstrap/meeting_packets.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <poll.h>
#include <unistd.h>
#include <utility>

namespace tsprun::detail::bootstrap {

using namespace meeting;

namespace {

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
    // ECONNREFUSED: nobody listens there yet. EAGAIN: many ranks connect at once.
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
    posix::sleep_ns(kRetryNs);
  }
}

[[noreturn]] void throw_host_gone(const Identity& identity) {
  throw Error(Cause::exited, "local rank 0 ended before all ranks of this node had met", identity.rank - identity.local_rank);
}

/// Receives the answer and, if it carries one, the memory's descriptor.
UniqueFd receive_answer(const UniqueFd& socket, const Identity& identity, std::uint64_t timeout_ns, Answer& message) {
  // Local rank 0 started before this connection was made, so it gives up before this deadline and says which ranks are missing.
  // It waits for other nodes after that.
  const std::uint64_t patience = (identity.local_size == identity.size ? 1 : 2) * timeout_ns + kGraceNs;
  const std::uint64_t deadline = posix::now_ns() + patience;
  for (;;) {
    pollfd watched{socket.get(), POLLIN, 0};
    const int ready = ::poll(&watched, 1, milliseconds_until(deadline));
    if (ready < 0 && errno != EINTR) throw system_error(Cause::refused, "poll", errno);
    if (ready > 0) break;
    if (posix::now_ns() >= deadline) {
      throw Error(Cause::stalled, fmt::format("local rank 0 is there, but didn't answer within {}", seconds(patience)),
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
  if (got != static_cast<ssize_t>(sizeof message) || (header.msg_flags & MSG_TRUNC) != 0 || message.magic != kMeetMagic) {
    throw Error(Cause::refused,
                fmt::format("local rank 0 answered {} bytes that aren't understood, {} were expected: build all ranks from the "
                            "same version",
                            got, sizeof message));
  }
  return descriptor;
}

Meeting visit(const Identity& identity, std::uint64_t timeout_ns) {
  const UniqueFd socket = reach_host(identity, timeout_ns);
  const Hello hello{kMeetMagic, identity.rank, identity.size, identity.local_rank, identity.local_size};
  // A new connection's buffer holds far more than this packet, so it is sent completely or not at all. If local rank 0 has closed
  // the connection already, its answer can still be read.
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

Meeting meet(const Identity& identity, std::uint64_t timeout_ns, const OtherNodes& others) {
  if (identity.local_size != identity.size && !others) {
    throw Error(Cause::refused, fmt::format("{} started {} ranks, {} of them on this node: all must be on one node, but for "
                                            "those of mpirun, srun --mpi=pmi2, Context::join() or tsprun --nnodes",
                                            identity.starter, identity.size, identity.local_size));
  }
  if (identity.local_size > shm::kMaxLocalRanks) {
    throw Error(Cause::refused, fmt::format("{} ranks on one node: 1 to {} work", identity.local_size, shm::kMaxLocalRanks));
  }
  return identity.local_rank == 0 ? host(identity, timeout_ns, others) : visit(identity, timeout_ns);
}

}  // namespace tsprun::detail::bootstrap
