// Connects two endpoints of one process, and moves 1 MiB from one to the other within a deadline.
#include "launcher/transport_trial.h"

#include "transport/bootstrap/handshake.h"
#include "transport/cause.h"
#include "transport/posix.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/verbs/verbs_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <netinet/in.h>
#include <span>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

namespace tsprun::detail::launcher {

namespace {

constexpr std::uint64_t kDeadline_ns = 5'000'000'000;
constexpr std::size_t kBytes = std::size_t{1} << 20;
constexpr Envelope kEnvelope{0x7472'6961'6c00'0001, 1, 1, Purpose::other};

/// One end of the connection under trial, and its number for the other end.
struct End {
  Transport& transport;
  int peer;
};

struct Unmap {
  std::size_t bytes;
  void operator()(std::byte* place) const { ::munmap(place, bytes); }
};
using Memory = std::unique_ptr<std::byte, Unmap>;

Memory map(std::size_t bytes) {
  void* place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) throw system_error(Cause::out_of_memory, fmt::format("{} bytes of memory", bytes), errno);
  return Memory(static_cast<std::byte*>(place), Unmap{bytes});
}

void until(const std::function<bool()>& condition, const std::string& what) {
  const std::uint64_t deadline = posix::now_ns() + kDeadline_ns;
  while (!condition()) {
    if (posix::now_ns() >= deadline) throw Error(Cause::stalled, fmt::format("{} took longer than 5 s", what));
    const timespec pause{0, 50'000};
    ::nanosleep(&pause, nullptr);
  }
}

bool done(Outcome outcome, const Transport& transport, LaneId lane) {
  if (outcome != Outcome::pending && outcome != Outcome::done) throw Error(Cause::disconnected, transport.found(lane).detail);
  return outcome == Outcome::done;
}

/// Moves `from` at one end to `into` at the other and compares.
void exchange(End sender, End receiver, std::span<std::byte> from, std::span<std::byte> into) {
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 131 >> 3);
  const LaneId out{sender.peer, Stream::control};
  const LaneId in{receiver.peer, Stream::control};
  const Ticket posted = receiver.transport.receive(in, kEnvelope, into);
  const Ticket sent = sender.transport.send(out, kEnvelope, from, Delivery::by_reference);
  bool arrived = false;
  bool gone = false;
  until(
      [&] {
        sender.transport.progress();
        receiver.transport.progress();
        arrived = arrived || done(receiver.transport.test_receive(in, posted), receiver.transport, in);
        gone = gone || done(sender.transport.test_send(out, sent), sender.transport, out);
        return arrived && gone;
      },
      "a message of 1 MiB");
  if (!std::equal(from.begin(), from.end(), into.begin())) throw Error(Cause::corrupt, "1 MiB arrived damaged");
}

template <class Body>
Trial attempt(Body&& body) {
  try {
    const std::uint64_t begin = posix::now_ns();
    const std::string what = body();
    return {true, fmt::format("{}; two ends connected and 1 MiB arrived whole, {:.1f} ms in all", what,
                              static_cast<double>(posix::now_ns() - begin) * 1e-6)};
  } catch (const Error& error) {
    return {false, error.what()};
  }
}

}  // namespace

Trial try_verbs(const std::string& device) {
  return attempt([&] {
    const Memory memory = map(2 * kBytes);
    const std::span<std::byte> heap(memory.get(), 2 * kBytes);
    const verbs::VerbsOptions options{.device = device, .timeout_ns = kDeadline_ns, .peers = 1, .heap = heap};
    verbs::VerbsTransport left(options);
    verbs::VerbsTransport right(options);
    for (verbs::VerbsTransport* end : {&left, &right}) {
      if (!end->why_not().empty()) throw Error(Cause::refused, end->why_not());
      end->register_memory(heap);
    }
    const std::vector<std::byte> address = left.address(0);
    left.connect(0, right.address(0));
    right.connect(0, address);
    until([&] { return left.linked(0) && right.linked(0); }, "linking two queue pairs");
    until(
        [&] {
          const bool one = left.connected(0);
          return right.connected(0) && one;
        },
        "a probe between two queue pairs");
    exchange({left, 0}, {right, 0}, heap.first(kBytes), heap.last(kBytes));
    return left.chosen();
  });
}

Trial try_tcp() {
  return attempt([] {
    const Memory memory = map(2 * kBytes);
    const std::span<std::byte> heap(memory.get(), 2 * kBytes);
    tcp::TcpOptions options{.rank = 0, .world_size = 2, .secret = bootstrap::random_secret(), .timeout_ns = kDeadline_ns};
    tcp::TcpTransport left(options);
    options.rank = 1;
    tcp::TcpTransport right(options);
    left.connect(1, right.address(0));
    right.connect(0, left.address(1));
    until(
        [&] {
          const bool one = left.connected(1);
          for (const std::string& why : {left.broken(1), right.broken(0)}) {
            if (!why.empty()) throw Error(Cause::disconnected, why);
          }
          return right.connected(0) && one;
        },
        "connecting two sockets");
    exchange({left, 1}, {right, 0}, heap.first(kBytes), heap.last(kBytes));
    return std::string("loopback");
  });
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
