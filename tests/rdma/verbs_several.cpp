// Counts what leaves by each adapter while large messages go to and fro.
#include "tests/rdma/verbs_several.h"

#include "tests/rdma/verbs_pair.h"
#include "transport/log.h"
#include "transport/posix.h"

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
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

/// Exchanges a message, and waits until so many queue pairs or more carry payloads at both ends. Returns the number of messages.
std::uint32_t settle(VerbsPair& pair, int ways) {
  both_ways(pair, 1, 100);
  pair.until([&] { return pair.transport().ways(0) >= ways; }, "further queue pairs carry payloads");
  pair.meet();
  return 1;
}

/// Exchanges a message, and gives a queue pair that shall not carry payloads the time that one takes that does.
std::uint32_t settle_without(VerbsPair& pair) {
  constexpr std::uint64_t kTimeNs = 3'000'000'000;
  const std::uint64_t begin = posix::now_ns();
  const std::uint32_t sequence = settle(pair, 1);
  pair.until([&] { return posix::now_ns() - begin > kTimeNs; }, "time");
  require(pair.transport().ways(0) == 1, "another queue pair carries payloads");
  return sequence;
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
  const auto seed_of = [](int from, int stream) {
    return static_cast<std::uint64_t>(stream) + (static_cast<std::uint64_t>(from) << 32);
  };
  for (const char* settings : {"", "pairs=3"}) {
    VerbsPair pair(std::string("several") + settings, {.device = settings, .heap_bytes = kHeapBytes});
    const std::string chosen = pair.transport().chosen();
    require(contains(chosen, "rxe0 port 1") && contains(chosen, "with rxe1 port 1"), chosen);
    std::uint32_t sequence = settle(pair, *settings == 0 ? 2 : 6);
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
      fill(from, seed_of(node(), stream));
      tickets.push_back(pair.send(static_cast<Stream>(stream), envelope_of(1000), from));
    }
    for (int stream = 0; stream < kStreams; ++stream) {
      const auto i = static_cast<std::size_t>(stream);
      pair.finish_receive(static_cast<Stream>(stream), posted[i]);
      require(holds(pair.heap(kArrivals + i * 2 * kMebibyte, kEach), seed_of(1 - node(), stream)), "damaged");
      pair.finish_send(static_cast<Stream>(stream), tickets[i]);
    }
    pair.close();
  }
}

void several_or_one() {
  for (const int with_one : {-1, 0, 1}) {
    const bool one = with_one == -1 || with_one == node();
    VerbsPair pair("one" + std::to_string(with_one), {.device = one ? "nics=1" : "", .heap_bytes = kHeapBytes});
    std::uint32_t sequence = settle_without(pair);
    const Packets sent = carried(pair, ++sequence);
    require(sent[0] >= kPackets && sent[1] < 20, "the second adapter carries something");
    pair.close();
  }
  // Ranks that divide the adapters have one each.
  VerbsPair pair("divided", {.local_rank = 1, .local_ranks = 2, .heap_bytes = kHeapBytes});
  std::uint32_t sequence = settle_without(pair);
  const Packets sent = carried(pair, ++sequence);
  require(sent[1] >= kPackets && sent[0] < 20, "another rank's adapter carries something");
  pair.close();
}

void several_unreachable() {
  if (node() == 0) weather("cut 1:1");
  VerbsPair pair("unreachable", {.device = "retries=2,timeout=17", .heap_bytes = kHeapBytes});
  std::uint32_t sequence = settle_without(pair);
  const Packets sent = carried(pair, ++sequence);
  require(sent[0] >= kPackets && sent[1] < 20, "an adapter that reaches nobody carries something");
  pair.close();
  if (node() == 0) weather("join 1:1");
}

void several_unregistered() {
  // The fourth region of machine 1 is its heap, registered with the second adapter, after the doors with both and the heap with
  // the first.
  if (node() == 1) ::setenv("RDMA_SHIM", "reg_mr@4=12", 1);
  VerbsPair pair("unregistered", {.heap_bytes = kHeapBytes});
  ::unsetenv("RDMA_SHIM");
  pair.meet();  // the rings of a queue are registered when the first message comes
  std::uint32_t sequence = settle(pair, 2);
  const Packets sent = carried(pair, ++sequence);
  require(sent[0] >= kPackets && sent[1] < 20, "an adapter that doesn't know the heap carries something");
  pair.close();
}

namespace {

/// Returns how many times as fast two adapters that carry at most so many MiB a second carry a payload than one does. Both
/// machines have the figure of machine 0.
double gain_of_two(double mebibytes, std::size_t bytes) {
  if (node() == 0) {
    for (const char* machine : {"0", "1"}) weather("cap " + std::string(machine) + " " + std::to_string(mebibytes));
  }
  std::array<double, 2> seconds{};
  double gain = 0;
  for (const int nics : {1, 2}) {
    VerbsPair pair("capped" + std::to_string(nics) + "at" + std::to_string(mebibytes),
                   {.device = "nics=" + std::to_string(nics), .heap_bytes = kHeapBytes});
    const std::uint32_t sequence = settle(pair, nics);
    pair.meet();
    const std::uint64_t begin = posix::now_ns();
    const std::span<std::byte> told = std::as_writable_bytes(std::span(&gain, 1));
    if (node() == 0) {
      pair.finish_send(kStream, pair.send(kStream, envelope_of(sequence + 1), pair.heap(0, bytes)));
      seconds[static_cast<std::size_t>(nics - 1)] = static_cast<double>(posix::now_ns() - begin) / 1e9;
      if (nics == 2) gain = seconds[0] / seconds[1];
      pair.finish_send(kStream, pair.send(kStream, envelope_of(sequence + 2), told));
    } else {
      pair.finish_receive(kStream, pair.receive(kStream, envelope_of(sequence + 1), pair.heap(0, bytes)));
      pair.finish_receive(kStream, pair.receive(kStream, envelope_of(sequence + 2), told));
    }
    pair.close();
  }
  if (node() == 0) std::printf("by one adapter %.2f s, by two %.2f s\n", seconds[0], seconds[1]);
  std::printf("%zu MiB at %.2f MiB/s: %.2f times as fast by two adapters\n", bytes / kMebibyte, mebibytes, gain);
  return gain;
}

}  // namespace

// Machines whose host is busy may not reach twice the cap: it is lowered then.
void several_capped() {
  double gain = 0;
  std::size_t bytes = 16 * kMebibyte;
  for (double cap = 2.5; cap > 0.2 && gain < 1.8; cap /= 3, bytes /= 3) gain = gain_of_two(cap, bytes);
  if (node() == 0) {
    weather("cap 0 0");
    weather("cap 1 0");
  }
  require(gain >= 1.8, "two adapters carry little more than one");
}

namespace {

/// Calls body(piece, seed of the piece) for a few bytes in each 32 KiB of a payload: all would take an emulated machine too long.
template <class Body>
void for_marks(std::span<std::byte> payload, std::uint64_t seed, Body&& body) {
  constexpr std::size_t kEvery = std::size_t{32} << 10;
  constexpr std::size_t kMark = 256;
  for (std::size_t at = 0; at < payload.size(); at += kEvery)
    body(payload.subspan(at, std::min(kMark, payload.size() - at)), seed + (at << 8));
}

/// Longest times without the end of a message, in seconds.
struct Pauses {
  double before = 0;
  double after = 0;

  /// Requires that a fault, which takes `seconds` to be noticed, held messages up for a moment only: as long as others take on
  /// a machine whose host is busy.
  void require_short(double seconds, const std::string& what) const {
    require(after <= seconds + std::max(3.0, 6 * before), what);
  }
};

/// Keeps messages of all kinds going both ways on two streams until `seconds` have passed at this machine and the other one has
/// had as many; each is looked at. Returns the longest times that none ended, before the middle and after.
Pauses keep_going(VerbsPair& pair, double seconds, const std::function<void()>& in_the_middle) {
  constexpr std::array<std::size_t, 5> kSizes = {100, 3000, 40'000, kMebibyte, 8192};
  constexpr std::size_t kSlot = 2 * kMebibyte;
  constexpr std::uint32_t kInFlight = 5;
  constexpr std::uint32_t kEnd = 1'000'000;  // the number of the last message, which is empty
  constexpr std::array<Stream, 2> kStreamsOfIt = {Stream::kv, Stream::weights};
  struct Side {
    std::uint32_t posted = 0;
    std::uint32_t done = 0;
    std::array<Ticket, kInFlight> tickets{};
  };
  std::array<Side, 2> out{};
  std::array<Side, 2> in{};
  verbs::VerbsTransport& transport = pair.transport();
  const auto bytes_of = [&](std::uint32_t i) { return kSizes[i % kSizes.size()]; };
  const auto seed = [](int from, std::size_t lane, std::uint32_t i) {
    return static_cast<std::uint64_t>(from) << 40 | static_cast<std::uint64_t>(lane) << 32 | i;
  };
  const auto place = [&](int half, std::size_t lane, std::uint32_t i) {
    const std::size_t slot = static_cast<std::size_t>(half) * 10 + lane * kInFlight + i % kInFlight;
    return pair.heap(slot * kSlot + i % 3, bytes_of(i));
  };
  const std::uint64_t begin = posix::now_ns();
  std::uint64_t last_end = begin;
  Pauses longest;
  bool middle = false;
  const auto since = [&](std::uint64_t when) { return static_cast<double>(posix::now_ns() - when) / 1e9; };
  const auto note_end = [&] {
    double& of_now = middle ? longest.after : longest.before;
    of_now = std::max(of_now, since(last_end));
    last_end = posix::now_ns();
  };
  // Both sides send as many: the number is agreed on by the clock of machine 0, which says so in an envelope of its own.
  std::uint32_t until = kEnd;
  Ticket word = kNotNow;
  if (node() == 1) word = pair.receive(Stream::control, envelope_of(7), {});
  std::array<std::byte, 4> number{};
  Ticket number_ticket = kNotNow;
  bool said = false;
  pair.until(
      [&] {
        if (!middle && since(begin) > seconds / 3) {
          middle = true;
          in_the_middle();
        }
        if (node() == 0 && !said && since(begin) > seconds) {
          until = std::max({out[0].posted, out[1].posted, in[0].posted, in[1].posted}) + 8;
          std::memcpy(number.data(), &until, sizeof until);
          pair.send(Stream::control, envelope_of(7), {});
          pair.send(Stream::control, envelope_of(8), number);
          said = true;
        }
        if (node() == 1 && number_ticket == kNotNow && transport.test_receive({0, Stream::control}, word) == Outcome::done)
          number_ticket = pair.receive(Stream::control, envelope_of(8), number);
        if (node() == 1 && !said && number_ticket != kNotNow &&
            transport.test_receive({0, Stream::control}, number_ticket) == Outcome::done) {
          std::memcpy(&until, number.data(), sizeof until);
          said = true;
        }
        bool all = said;
        for (std::size_t lane = 0; lane < kStreamsOfIt.size(); ++lane) {
          const LaneId id{0, kStreamsOfIt[lane]};
          Side& sending = out[lane];
          Side& receiving = in[lane];
          while (sending.posted < until && sending.posted - sending.done < kInFlight) {
            const std::span<std::byte> payload = place(0, lane, sending.posted);
            for_marks(payload, seed(node(), lane, sending.posted), fill);
            const Ticket ticket = transport.send(id, envelope_of(sending.posted), payload, Delivery::copy_if_small);
            if (ticket == kNotNow) break;
            sending.tickets[sending.posted++ % kInFlight] = ticket;
          }
          while (sending.done < sending.posted) {
            const Outcome outcome = transport.test_send(id, sending.tickets[sending.done % kInFlight]);
            if (outcome == Outcome::pending) break;
            require(outcome == Outcome::done, "a send failed: " + transport.found(id).detail);
            ++sending.done;
            note_end();
          }
          while (receiving.posted < until && receiving.posted - receiving.done < kInFlight) {
            const Ticket ticket = transport.receive(id, envelope_of(receiving.posted), place(1, lane, receiving.posted));
            if (ticket == kNotNow) break;
            receiving.tickets[receiving.posted++ % kInFlight] = ticket;
          }
          while (receiving.done < receiving.posted) {
            const Outcome outcome = transport.test_receive(id, receiving.tickets[receiving.done % kInFlight]);
            if (outcome == Outcome::pending) break;
            require(outcome == Outcome::done, "a receive failed: " + transport.found(id).detail);
            const std::span<std::byte> found = place(1, lane, receiving.done);
            for_marks(found, seed(1 - node(), lane, receiving.done),
                      [&](std::span<const std::byte> mark, std::uint64_t expected) {
                        require(holds(mark, expected), "message " + std::to_string(receiving.done) + " arrived damaged");
                      });
            ++receiving.done;
            note_end();
          }
          all = all && sending.done == until && receiving.done == until;
        }
        return all;
      },
      "all messages through");
  std::printf("%u messages a stream each way; at most %.2f s without one, then %.2f\n", until, longest.before, longest.after);
  return longest;
}

}  // namespace

void several_port_down() {
  for (const int adapter : {1, 0}) {
    VerbsPair pair("down" + std::to_string(adapter), {.heap_bytes = kHeapBytes});
    settle(pair, 2);
    const std::string link = "ip link set eth" + std::to_string(adapter);
    keep_going(pair, 6, [&] {
      if (node() == 1) run_shell(link + " down");
    }).require_short(0, "a port that went down held up the messages");
    const Packets sent = carried(pair, 2'000'000);
    require(sent[static_cast<std::size_t>(1 - adapter)] >= kPackets, "the other adapter doesn't carry all");
    pair.close();
    if (node() == 1) run_shell(link + " up");
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

void several_silent() {
  for (const int adapter : {1, 0}) {
    constexpr double kRetries_s = 3 * 4.096e-6 * (1 << 17);  // as the settings say; soft-RoCE takes somewhat longer
    VerbsPair pair("silent" + std::to_string(adapter), {.device = "retries=2,timeout=17", .heap_bytes = kHeapBytes});
    settle(pair, 2);
    const std::string place = "1:" + std::to_string(adapter);
    keep_going(pair, 8, [&] {
      if (node() == 0) weather("cut " + place);
    }).require_short(kRetries_s, "frames that were lost held up the messages");
    pair.close();
    if (node() == 0) weather("join " + place);
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

namespace {

/// Exchanges messages of all kinds by four queue pairs while machine i loses that of its completion number `lost[i]`; 0: none.
/// Begins when so many of them carry payloads.
void exchange_and_lose(const std::string& name, const std::array<int, 2>& lost, int ways = 4) {
  constexpr const char* kRetriesExceeded = "=12";
  VerbsPair pair(name, {.device = "pairs=2", .heap_bytes = kHeapBytes});
  std::uint32_t sequence = settle(pair, ways);
  if (const int completion = lost[static_cast<std::size_t>(node())]; completion != 0)
    ::setenv("RDMA_SHIM", ("lose@" + std::to_string(completion) + kRetriesExceeded).c_str(), 1);
  for (const std::size_t bytes :
       {std::size_t{100}, std::size_t{9000}, kMebibyte / 2, std::size_t{8192}, kMebibyte, std::size_t{50}})
    both_ways(pair, ++sequence, bytes);
  std::vector<Ticket> posted;
  std::vector<Ticket> tickets;
  for (std::uint32_t i = 0; i < 8; ++i) {
    const std::size_t bytes = i % 2 == 0 ? 500 : kMebibyte / 2 + i;
    posted.push_back(pair.receive(kStream, envelope_of(100 + i), pair.heap(kArrivals + i * kMebibyte, bytes)));
  }
  for (std::uint32_t i = 0; i < 8; ++i) {
    const std::span<std::byte> from = pair.heap(i * kMebibyte, i % 2 == 0 ? 500 : kMebibyte / 2 + i);
    fill(from, i + static_cast<std::uint64_t>(100 * node()));
    tickets.push_back(pair.send(kStream, envelope_of(100 + i), from));
  }
  // A queue may be opened while the ends agree on what is lost.
  std::array<std::byte, 5> word{};
  const Ticket other = pair.receive(Stream::weights, envelope_of(7), word);
  pair.finish_send(Stream::weights, pair.send(Stream::weights, envelope_of(7), pair.heap(0, word.size())));
  for (std::uint32_t i = 0; i < 8; ++i) {
    pair.finish_receive(kStream, posted[i]);
    require(holds(pair.heap(kArrivals + i * kMebibyte, i % 2 == 0 ? 500 : kMebibyte / 2 + i),
                  i + static_cast<std::uint64_t>(100 * (1 - node()))),
            "damaged");
    pair.finish_send(kStream, tickets[i]);
  }
  pair.finish_receive(Stream::weights, other);
  require(holds(word, static_cast<std::uint64_t>(100) * (node() == 0 ? 1 : 0)), "damaged");
  ::unsetenv("RDMA_SHIM");
  pair.close();
}

/// A queue is first used when a way has failed at this end, and the other end doesn't know yet.
void open_while_moving() {
  VerbsPair pair("opening", {.device = "pairs=2", .heap_bytes = kHeapBytes});
  settle(pair, 4);
  constexpr std::uint32_t kMessages = 10;
  const std::span<std::byte> word = pair.heap(0, 100);
  if (node() == 0) {
    fill(word, 3);
    ::setenv("RDMA_SHIM", "lose@1=12", 1);
    for (std::uint32_t i = 0; i < kMessages; ++i) pair.send(kStream, envelope_of(100 + i), word);
    pair.until([&] { return pair.transport().ways(0) < 4; }, "a way is lost");
    ::unsetenv("RDMA_SHIM");
    pair.send(Stream::weights, envelope_of(1), word);
    pair.meet();
  } else {
    pair.meet();
    std::vector<std::byte> into(word.size());
    for (std::uint32_t i = 0; i <= kMessages; ++i) {
      const Stream stream = i < kMessages ? kStream : Stream::weights;
      pair.finish_receive(stream, pair.receive(stream, envelope_of(i < kMessages ? 100 + i : 1), into));
      require(holds(into, 3), "damaged");
    }
  }
  pair.close();
}

}  // namespace

void several_lost() {
  open_while_moving();
  for (const int completion : {1, 2, 3, 4, 5, 7, 8, 10, 13, 16, 23, 34}) {
    std::array<int, 2> lost{};
    lost[static_cast<std::size_t>(completion % 2)] = completion;
    exchange_and_lose("lost" + std::to_string(completion), lost);
    if (completion <= 8) exchange_and_lose("joining" + std::to_string(completion), lost, 2);
  }
}

void several_explained() {
  std::ostringstream log;
  const auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(log);
  logger().sinks().push_back(sink);
  const std::shared_ptr<void> guard(nullptr, [&](void*) { std::erase(logger().sinks(), sink); });
  VerbsPair pair("explained", {.device = "rxe1,rxe0", .heap_bytes = kHeapBytes});
  std::uint32_t sequence = settle(pair, 2);
  if (node() == 1) ::setenv("RDMA_SHIM", "lose@1=12", 1);
  both_ways(pair, ++sequence, kMebibyte);
  pair.until([&] { return pair.transport().ways(0) == 1; }, "a way is lost");
  ::unsetenv("RDMA_SHIM");
  pair.meet();
  std::string lost;
  if (node() == 1) {
    lost = contains(log.str(), "is lost, rxe1:1") ? "1" : "0";
    require(contains(log.str(), "is lost, rxe" + lost + ":1") && !contains(log.str(), "is down"), log.str());
    run_shell("ip link set eth" + lost + " down");
    pair.until([&] { return contains(log.str(), "rxe" + lost + " port 1 is down; a way"); }, "the port is named");
  }
  pair.meet();
  both_ways(pair, ++sequence, kMebibyte);
  pair.close();
  if (node() == 1) run_shell("ip link set eth" + lost + " up");
  std::this_thread::sleep_for(std::chrono::seconds(1));
}

void several_lost_at_both() {
  constexpr std::array<std::array<int, 2>, 6> kLost = {{{1, 2}, {3, 2}, {7, 7}, {1, 8}, {4, 13}, {19, 6}}};
  for (const std::array<int, 2>& lost : kLost)
    exchange_and_lose("both" + std::to_string(lost[0]) + "-" + std::to_string(lost[1]), lost);
}

}  // namespace tsprun::detail::test
