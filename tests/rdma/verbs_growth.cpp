// Counts what idle and used peers pin, and lets queue pairs of unlike lengths meet.
#include "tests/rdma/verbs_growth.h"

#include "tests/rdma/verbs_pair.h"
#include "transport/verbs/wire.h"

#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tsprun::detail::test {

namespace {

std::size_t pinned_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::size_t kib = 0;
    if (word == "VmPin:" && status >> kib) return kib << 10;
  }
  throw std::runtime_error("no VmPin in /proc/self/status");
}

constexpr std::size_t kIncoming = std::size_t{1} << 20;  // where messages go in the heap
std::uint64_t seed_of(int from) { return static_cast<std::uint64_t>(from) << 32; }

}  // namespace

void queues() {
  {
    constexpr int kPeers = 100;  // whole queue pairs for them need two completion queues of soft-RoCE
    const std::size_t before = pinned_bytes();
    verbs::VerbsTransport whole({.device = "whole=100", .peers = kPeers});
    for (int peer = 0; peer < kPeers; ++peer)
      require(verbs::Address::decode(whole.address(peer)).value().small == 0, "a queue pair is small");
    verbs::VerbsTransport idle({.peers = kPeers});
    for (int peer = 0; peer < kPeers; ++peer)
      require(verbs::Address::decode(idle.address(peer)).value().small == 1, "an idle peer has a whole queue pair");
    const std::size_t held = pinned_bytes() - before;
    std::printf("%d idle peers pin %zu bytes\n", kPeers, held / 2);
    constexpr std::size_t kPage = 4096;
    const std::size_t doors = 2 * ((2 * verbs::doors_bytes(kPeers) + kPage - 1) / kPage * kPage);
    require(held == doors,
            "idle peers pin " + std::to_string(held) + " bytes, not the " + std::to_string(doors) + " of their doors");
  }
  VerbsPair pair("queues", {});
  std::size_t held = pinned_bytes();
  pair.meet();  // before a message of the other machine opens a queue here
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kQueue = (2 * verbs::kRingBytes + kPage - 1) / kPage * kPage;
  for (const Stream stream : {kStream, Stream::control, kTagged}) {
    for (const std::size_t more : {kQueue, std::size_t{0}}) {
      pair.open(stream);
      const std::size_t now = pinned_bytes();
      require(now - held == more, "a message on queue " + std::to_string(static_cast<int>(stream)) + " has pinned " +
                                      std::to_string(now - held) + " bytes, not " + std::to_string(more));
      held = now;
      pair.meet();
    }
  }
  pair.close();
}

void mixed() {
  for (const int with_small : {0, 1}) {
    const std::string settings = node() == with_small ? "whole=0" : "whole=1";
    VerbsPair pair("mixed" + std::to_string(with_small), {.device = settings});
    for (std::uint32_t sequence = 1; sequence < 40; ++sequence) {
      const std::size_t bytes = sequence % 5 == 0 ? 50000 : sequence * 30;
      fill(pair.heap(0, bytes), sequence + seed_of(node()));
      const Ticket posted = pair.receive(kStream, envelope_of(sequence), pair.heap(kIncoming, bytes));
      pair.finish_send(kStream, pair.send(kStream, envelope_of(sequence), pair.heap(0, bytes)));
      pair.finish_receive(kStream, posted);
      require(holds(pair.heap(kIncoming, bytes), sequence + seed_of(1 - node())), "damaged");
    }
    pair.close();
  }
}

}  // namespace tsprun::detail::test
