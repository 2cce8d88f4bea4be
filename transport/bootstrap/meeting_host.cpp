// Local rank 0's side of a meeting: it collects the other ranks and gives them the node's memory.
#include "transport/bootstrap/job_description.h"
#include "transport/bootstrap/meeting.h"
#include "transport/bootstrap/meeting_packets.h"
#include "transport/cause.h"
#include "transport/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace tsprun::detail::bootstrap::meeting {

namespace {

/// Collects the other ranks, then gives all of them the memory, or all of them the reason for the failure. A connected process
/// is a stranger until its packet was read, then a guest.
class Host {
 public:
  Host(const Identity& identity, std::uint64_t timeout_ns, const OtherNodes& others)
      : identity_(identity), timeout_ns_(timeout_ns), others_(others), guests_(static_cast<std::size_t>(identity.local_size)) {}

  Meeting hold() {
    listen();
    try {
      collect();
      JobDescription job{.first_rank = static_cast<std::uint32_t>(first_rank()),
                         .cores = static_cast<std::uint32_t>(machine::usable_cores(pids())),
                         .timeout_ns = timeout_ns_};
      Secret secret;
      if (others_) others_(job, secret);
      shm::NodeLayout layout;
      layout.local_ranks = static_cast<std::uint32_t>(identity_.local_size);
      layout.heap_bytes = shm::default_heap_bytes();
      layout.world_size = static_cast<std::uint32_t>(identity_.size);
      Meeting meeting{shm::NodeMemory::create_posix(layout), pids()};
      describe_job(meeting.memory, job, secret);
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
      // poll skips a descriptor of -1, that of a rank that hasn't come yet.
      for (const Guest& guest : guests_) watched.push_back({guest.socket.get(), POLLIN, 0});

      const int ready = ::poll(watched.data(), watched.size(), milliseconds_until(deadline));
      if (ready < 0 && errno != EINTR) throw system_error(Cause::refused, "poll", errno);
      if (ready <= 0) {
        if (posix::now_ns() >= deadline) throw_missing();
        continue;
      }
      // A guest sends nothing more, so an event on its socket means that it has ended.
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
      return;  // the process has gone again, or a signal interrupted
    }
    const ucred peer = credentials(socket);
    if (peer.uid != ::getuid()) return;
    strangers_.push_back({std::move(socket), peer.pid});
  }

  /// Reads a stranger's packet: the stranger becomes a guest, or is dropped if it isn't a rank of tsprun. Throws if its place
  /// doesn't fit this job.
  void greet(std::size_t index) {
    Guest stranger = std::move(strangers_[index]);
    strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(index));
    Hello hello{};
    const ssize_t got = ::recv(stranger.socket.get(), &hello, sizeof hello, MSG_TRUNC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      strangers_.push_back(std::move(stranger));
      return;
    }
    if (got != static_cast<ssize_t>(sizeof hello) || hello.magic != kMeetMagic) return;
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
        fmt::format("local rank{} {} of {} didn't come within {} (job id {} of {}): {} started on this machine, by this user?",
                    absent.size() == 1 ? "" : "s", list(absent), identity_.local_size, seconds(timeout_ns_), identity_.job_id,
                    identity_.starter, absent.size() == 1 ? "was it" : "were they"),
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

  /// Sends the answer to all guests and, if the meeting failed, to strangers too. One that has ended by now is no error here:
  /// the ranks that wait for it will find that.
  void answer(Cause cause, int culprit, std::string_view text, int descriptor) {
    Answer message{};
    message.magic = kMeetMagic;
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
  const OtherNodes& others_;
  UniqueFd listener_;
  std::vector<Guest> guests_;     // by local rank; 0 stays empty
  std::vector<Guest> strangers_;  // connected, packet not read yet
};

}  // namespace

Meeting host(const Identity& identity, std::uint64_t timeout_ns, const OtherNodes& others) {
  return Host(identity, timeout_ns, others).hold();
}

}  // namespace tsprun::detail::bootstrap::meeting
