// One message that takes longer than the deadline: while its bytes flow nobody is taken for dead, and once they stand still it is
// noticed. Two ranks over tcp, the receiver's socket read in gulps with long pauses between them.
#include "core/collectives/communicator_state.h"
#include "core/collectives/staging.h"
#include "transport/cause.h"
#include "transport/forwarding_transport.h"
#include "transport/posix.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace tsprun::detail::large_messages_test {
namespace {

constexpr std::uint64_t kDeadlineNs = 2'000'000'000;
constexpr std::uint64_t kPauseNs = 700'000'000;
/// Some eleven gulps at least: the transport reads four MiB at once.
constexpr std::size_t kBytes = std::size_t{48} << 20;

/// Number of gulps, with a pause after each but the last. Then the rest comes at once, or, if `dry`, never.
struct Gulps {
  int gulps;
  bool dry;
  std::uint64_t deadline_ns = kDeadlineNs;
};

class Sipping final : public ForwardingTransport {
 public:
  Sipping(Transport& inner, Gulps gulps) : ForwardingTransport(inner), gulps_(gulps) {}

  bool progress() override {
    if (gulps_.gulps == 0) return !gulps_.dry && inner().progress();
    if (posix::now_ns() < thirsty_ns_ || !inner().progress()) return false;
    --gulps_.gulps;
    thirsty_ns_ = posix::now_ns() + kPauseNs;
    return true;
  }
  /// Returns no descriptor: the inner one would say all the time that there is something to read.
  int descriptor() const override { return -1; }
  std::uint64_t arm() override { return std::min(inner().arm(), posix::now_ns() + 10'000'000); }

 private:
  Gulps gulps_;
  std::uint64_t thirsty_ns_ = 0;
};

tcp::TcpOptions options_of(int rank) { return {.rank = rank, .world_size = 2, .secret = {}}; }

/// One rank's parts, put together by hand.
struct Rank {
  Rank(shm::NodeMemory& memory, int rank, tcp::TcpTransport& tcp, Gulps gulps)
      : heap(memory.heap(rank), 0, {}),
        self(memory, rank),
        sipping(tcp, gulps),
        engine(alive(memory, rank), rank, routes(rank), memory.doorbell(rank),
               {.timeout_ns = gulps.deadline_ns, .oversubscribed = true}),
        staging(heap),
        world(CommunicatorState::make(engine, heap, staging, choices, {0, 1})) {}

  static FlightBoard alive(const shm::NodeMemory& memory, int rank) {
    const FlightBoard board(memory);
    board.page(rank).life.store(static_cast<std::uint32_t>(Life::alive));
    return board;
  }
  std::vector<Route> routes(int rank) {
    std::vector<Route> routes = {{.transport = &sipping, .peer = 0}, {.transport = &sipping, .peer = 1}};
    routes[static_cast<std::size_t>(rank)] = {.transport = &self, .peer = rank};
    return routes;
  }

  Heap heap;
  shm::ShmTransport self;
  Sipping sipping;
  Engine engine;
  Staging staging;
  ChoiceTable choices;
  Communicator world;
};

struct Transfer {
  Cause causes[2] = {};  // by rank
  bool whole = false;    // what arrived is what was sent
  double seconds = 0;
};

/// Rank 0 sends, rank 1 receives.
Transfer transfer(Gulps gulps) {
  shm::NodeMemory memory =
      shm::NodeMemory::create_memfd({.local_ranks = 2, .heap_bytes = std::uint64_t{256} << 20, .world_size = 2});
  tcp::TcpTransport zero(options_of(0));
  tcp::TcpTransport one(options_of(1));
  zero.connect(1, one.address(0));
  one.connect(0, zero.address(1));
  const std::uint64_t began = posix::now_ns();
  for (bool met = false; !met && posix::now_ns() - began < 10'000'000'000;) {
    met = zero.connected(1);
    met = one.connected(0) && met;
  }

  const std::vector<std::uint8_t> sent(kBytes, 7);
  std::vector<std::uint8_t> received(kBytes);
  Transfer result;
  const std::uint64_t start = posix::now_ns();
  const auto attempt = [&](int number, const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      result.causes[number] = error.cause();
    }
  };
  // Ranks and their sockets live until both have ended.
  Rank sender(memory, 0, zero, {.gulps = 0, .dry = false, .deadline_ns = gulps.deadline_ns});
  Rank receiver(memory, 1, one, gulps);
  std::thread peer([&] { attempt(0, [&] { sender.world.send(ConstBuffer(sent.data(), kBytes, DType::byte), 1); }); });
  attempt(1, [&] { receiver.world.recv(Buffer(received.data(), kBytes, DType::byte), 0); });
  peer.join();
  result.seconds = static_cast<double>(posix::now_ns() - start) * 1e-9;
  result.whole = received == sent;
  return result;
}

TEST(ALargeMessage, MayTakeLongerThanTheDeadlineWhileItsBytesFlow) {
  const Transfer slow = transfer({.gulps = 6, .dry = false});
  EXPECT_EQ(slow.causes[0], Cause::none) << name(slow.causes[0]);
  EXPECT_EQ(slow.causes[1], Cause::none) << name(slow.causes[1]);
  EXPECT_TRUE(slow.whole);
  EXPECT_GT(slow.seconds, 1.5 * kDeadlineNs * 1e-9) << "it wasn't slow";
}

TEST(ALargeMessage, WhoseBytesStandStillIsADeadlock) {
  // Of two ranks that wait for each other, one that doesn't run for half of the deadline, on a busy machine, is the one to blame.
  const Transfer dry = transfer({.gulps = 3, .dry = true, .deadline_ns = 5'000'000'000});
  EXPECT_EQ(dry.causes[0], Cause::deadlock) << name(dry.causes[0]);
  EXPECT_EQ(dry.causes[1], Cause::deadlock) << name(dry.causes[1]);
  EXPECT_FALSE(dry.whole);
  EXPECT_LT(dry.seconds, 60) << "it took a deadline of others than this test's";
}

}  // namespace
}  // namespace tsprun::detail::large_messages_test
