// Counts what leaves by each adapter while large messages go to and fro.
#include "tests/rdma/verbs_several.h"

#include "tests/rdma/verbs_pair.h"
#include "transport/posix.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace tsprun::detail::test {

namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;
constexpr std::size_t kHeapBytes = 40 * kMebibyte;
constexpr std::size_t kArrivals = 20 * kMebibyte;  // where messages go in the heap
constexpr std::size_t kPacket = 4096;

using Packets = std::array<long, 2>;

/// Returns how many packets each adapter has sent.
Packets packets() {
  Packets sent{};
  for (std::size_t i = 0; i < sent.size(); ++i) {
    std::ifstream file("/sys/class/infiniband/rxe" + std::to_string(i) + "/ports/1/hw_counters/sent_pkts");
    require(static_cast<bool>(file >> sent[i]), "no counter of packets");
  }
  return sent;
}

/// Sends a message each way at once, and looks at what arrived.
void both_ways(VerbsPair& pair, std::uint32_t sequence, std::size_t bytes) {
  const auto seed = [&](int from) { return sequence + (static_cast<std::uint64_t>(from) << 32); };
  const std::span<std::byte> into = pair.heap(kArrivals + sequence % 61, bytes);
  fill(pair.heap(sequence % 7, bytes), seed(node()));
  std::fill(into.begin(), into.end(), std::byte{});
  const Ticket posted = pair.receive(kStream, envelope_of(sequence), into);
  const Ticket sent = pair.send(kStream, envelope_of(sequence), pair.heap(sequence % 7, bytes));
  pair.finish_receive(kStream, posted);
  require(holds(into, seed(1 - node())), std::to_string(bytes) + " bytes arrived damaged");
  pair.finish_send(kStream, sent);
}

/// Exchanges a message, and gives both adapters time to be proved. Returns the number of messages.
std::uint32_t settle(VerbsPair& pair) {
  constexpr std::uint64_t kTimeNs = 1'500'000'000;
  both_ways(pair, 1, 100);
  pair.meet();
  const std::uint64_t begin = posix::now_ns();
  pair.until([&] { return posix::now_ns() - begin > kTimeNs; }, "time");
  return 1;
}

/// Exchanges large messages; returns the packets that each adapter sent meanwhile.
Packets carried(VerbsPair& pair, std::uint32_t sequence) {
  pair.meet();
  const Packets before = packets();
  both_ways(pair, sequence, 8 * kMebibyte);
  pair.meet();
  const Packets after = packets();
  std::printf("8 MiB each way: %ld packets by rxe0, %ld by rxe1\n", after[0] - before[0], after[1] - before[1]);
  return {after[0] - before[0], after[1] - before[1]};
}

constexpr long kPackets = 8 * kMebibyte / kPacket;

}  // namespace

void several() {
  for (const char* settings : {"", "pairs=3"}) {
    VerbsPair pair(std::string("several") + settings, {.device = settings, .heap_bytes = kHeapBytes});
    const std::string chosen = pair.transport().chosen();
    require(contains(chosen, "rxe0 port 1") && contains(chosen, "with rxe1 port 1"), chosen);
    std::uint32_t sequence = settle(pair);
    const std::array<std::size_t, 9> sizes = {100,
                                              8192,
                                              8193,
                                              kMebibyte / 4,
                                              kMebibyte / 2 - 1,
                                              kMebibyte / 2 + 1,
                                              kMebibyte + 12345,
                                              3 * kMebibyte,
                                              17 * kMebibyte + 1};
    for (const std::size_t bytes : sizes) both_ways(pair, ++sequence, bytes);
    const Packets sent = carried(pair, ++sequence);
    require(std::min(sent[0], sent[1]) >= kPackets * 4 / 10, "the adapters aren't loaded alike");
    // Messages of all streams at once, each on its own.
    std::vector<Ticket> posted;
    std::vector<Ticket> tickets;
    constexpr std::size_t kEach = kMebibyte + 4097;
    for (int stream = 0; stream < kStreams; ++stream)
      posted.push_back(pair.receive(static_cast<Stream>(stream), envelope_of(1000),
                                    pair.heap(kArrivals + static_cast<std::size_t>(stream) * 2 * kMebibyte, kEach)));
    for (int stream = 0; stream < kStreams; ++stream) {
      const std::span<std::byte> from = pair.heap(static_cast<std::size_t>(stream) * 2 * kMebibyte, kEach);
      fill(from, static_cast<std::uint64_t>(stream + 10 * node()));
      tickets.push_back(pair.send(static_cast<Stream>(stream), envelope_of(1000), from));
    }
    for (int stream = 0; stream < kStreams; ++stream) {
      const auto i = static_cast<std::size_t>(stream);
      pair.finish_receive(static_cast<Stream>(stream), posted[i]);
      require(holds(pair.heap(kArrivals + i * 2 * kMebibyte, kEach), static_cast<std::uint64_t>(stream + 10 * (1 - node()))),
              "damaged");
      pair.finish_send(static_cast<Stream>(stream), tickets[i]);
    }
    pair.close();
  }
}

void several_or_one() {
  for (const int with_one : {-1, 0, 1}) {
    const bool one = with_one == -1 || with_one == node();
    VerbsPair pair("one" + std::to_string(with_one), {.device = one ? "nics=1" : "", .heap_bytes = kHeapBytes});
    std::uint32_t sequence = settle(pair);
    const Packets sent = carried(pair, ++sequence);
    require(sent[0] >= kPackets && sent[1] < 20, "the second adapter carries something");
    pair.close();
  }
  // Ranks that divide the adapters have one each.
  VerbsPair pair("divided", {.local_rank = 1, .local_ranks = 2, .heap_bytes = kHeapBytes});
  std::uint32_t sequence = settle(pair);
  const Packets sent = carried(pair, ++sequence);
  require(sent[1] >= kPackets && sent[0] < 20, "another rank's adapter carries something");
  pair.close();
}

void several_unreachable() {
  if (node() == 0) weather("cut 1:1");
  VerbsPair pair("unreachable", {.device = "retries=2,timeout=14", .heap_bytes = kHeapBytes});
  std::uint32_t sequence = settle(pair);
  const Packets sent = carried(pair, ++sequence);
  require(sent[0] >= kPackets && sent[1] < 20, "an adapter that reaches nobody carries something");
  pair.close();
  if (node() == 0) weather("join 1:1");
}

void several_capped() {
  constexpr std::size_t kBytes = 16 * kMebibyte;
  if (node() == 0) {
    weather("cap 0 2.5");
    weather("cap 1 2.5");
  }
  std::array<double, 2> seconds{};
  for (const int nics : {1, 2}) {
    VerbsPair pair("capped" + std::to_string(nics), {.device = "nics=" + std::to_string(nics), .heap_bytes = kHeapBytes});
    const std::uint32_t sequence = settle(pair);
    pair.meet();
    const std::uint64_t begin = posix::now_ns();
    if (node() == 0) {
      pair.finish_send(kStream, pair.send(kStream, envelope_of(sequence + 1), pair.heap(0, kBytes)));
    } else {
      pair.finish_receive(kStream, pair.receive(kStream, envelope_of(sequence + 1), pair.heap(0, kBytes)));
    }
    seconds[static_cast<std::size_t>(nics - 1)] = static_cast<double>(posix::now_ns() - begin) / 1e9;
    pair.close();
  }
  const double ratio = seconds[0] / seconds[1];
  std::printf("16 MiB by one adapter took %.2f s, by two %.2f s: %.2f times as fast\n", seconds[0], seconds[1], ratio);
  if (node() == 0) {
    weather("cap 0 0");
    weather("cap 1 0");
  }
  require(ratio >= 1.8, "two adapters carry little more than one");
}

}  // namespace tsprun::detail::test
