// Scenarios of two machines that speak verbs: runs on both machines of the laboratory, in lock step; ends with 1 at the first
// thing that doesn't hold.
//
//   verbs_peer SCENARIO…

#include "tests/rdma/verbs_growth.h"
#include "tests/rdma/verbs_pair.h"
#include "tests/rdma/verbs_several.h"
#include "tests/rdma/verbs_trouble.h"
#include "tests/rdma/verbs_unlike.h"
#include "transport/cause.h"
#include "transport/posix.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>
#include <poll.h>
#include <random>
#include <thread>

namespace tsprun::detail::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::uint64_t seed_of(int from, std::uint64_t message) { return static_cast<std::uint64_t>(from) * 1000003 + message; }

/// The text of the Error that `call` throws; fails if it throws none.
template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  throw std::runtime_error("nothing was refused");
}

/// Every boundary: header alone, inline in the work request, path MTU, eager and rendezvous; both directions at once.
void sizes() {
  VerbsPair pair("sizes", {});
  std::uint32_t sequence = 0;
  std::uint64_t total = 0;
  const std::size_t all[] = {0, 1, 7, 8, 63, 64, 155, 156, 157, 1000, 4031, 4032, 4033, 8191, 8192, 8193, 12289, 65536, kMiB + 3};
  for (const std::size_t bytes : all) {
    ++sequence;
    total += bytes;
    const std::span<std::byte> from = pair.heap(64 + 3, bytes);
    std::span<std::byte> into = pair.heap(4 * kMiB + 5, bytes);
    pair.heap(4 * kMiB + 4, 1)[0] = pair.heap(4 * kMiB + 5 + bytes, 1)[0] = std::byte{0xee};
    fill(from, seed_of(node(), sequence));
    std::fill(into.begin(), into.end(), std::byte{});
    const bool receive_first = (sequence % 2 == 0) == (node() == 0);
    Ticket posted = kNotNow;
    if (receive_first) posted = pair.receive(kStream, envelope_of(sequence), into);
    const Ticket sent = pair.send(kStream, envelope_of(sequence), from);
    if (!receive_first) posted = pair.receive(kStream, envelope_of(sequence), into);
    pair.finish_receive(kStream, posted);
    pair.finish_send(kStream, sent);
    require(holds(into, seed_of(1 - node(), sequence)), std::to_string(bytes) + " bytes arrived damaged");
    require(pair.heap(4 * kMiB + 4, 1)[0] == std::byte{0xee} && pair.heap(4 * kMiB + 5 + bytes, 1)[0] == std::byte{0xee},
            std::to_string(bytes) + " bytes touched their neighbours");
  }
  const auto purpose = static_cast<std::size_t>(Purpose::kv);
  require(pair.transport().counters().sent[purpose] == total && pair.transport().counters().received[purpose] == total,
          "counters");
  pair.close();
}

/// Plain memory is good up to the limit, and what leaves from it is the caller's at once.
void plain() {
  VerbsPair pair("plain", {});
  std::vector<std::byte> memory(pair.transport().plain_limit());
  fill(memory, seed_of(node(), 1));
  const Ticket sent = pair.send(kStream, envelope_of(1), memory);
  require(pair.transport().test_send({0, kStream}, sent) == Outcome::done, "a small send isn't done at once");
  fill(memory, 77);
  std::vector<std::byte> into(memory.size());
  pair.finish_receive(kStream, pair.receive(kStream, envelope_of(1), into));
  require(holds(into, seed_of(1 - node(), 1)), "damaged");
  std::vector<std::byte> large(memory.size() + 1);
  require(contains(refusal([&] { pair.send(kStream, envelope_of(2), large); }), "registered memory"),
          "a large send of plain memory");
  require(contains(refusal([&] { pair.receive(kStream, envelope_of(2), large); }), "registered memory"), "a large receive");
  pair.close();
}

/// Many messages of random sizes in flight on all streams, both directions.
void flight() {
  VerbsPair pair("flight", {});
  constexpr std::uint32_t kMessages = 120;
  constexpr std::size_t kLargest = 20000;
  std::mt19937 random(5);  // the same on both machines
  std::vector<std::size_t> sizes(kMessages);
  for (std::size_t& size : sizes) size = random() % 3 == 0 ? random() % kLargest : random() % 400;
  struct Side {
    std::uint32_t posted = 0;
    std::uint32_t done = 0;
    std::map<std::uint32_t, Ticket> tickets;
  };
  std::vector<Side> out(kStreams);
  std::vector<Side> in(kStreams);
  const auto place = [&](int half, int stream, std::uint32_t message) {
    const std::size_t slot = static_cast<std::size_t>(half * kStreams + stream) * 16 + message % 16;
    return pair.heap(slot * (kLargest + 64), sizes[message]);
  };
  verbs::VerbsTransport& transport = pair.transport();
  pair.until(
      [&] {
        bool all = true;
        for (int stream = 0; stream < kStreams; ++stream) {
          const LaneId lane{0, static_cast<Stream>(stream)};
          Side& sending = out[static_cast<std::size_t>(stream)];
          Side& receiving = in[static_cast<std::size_t>(stream)];
          while (sending.posted < kMessages && sending.posted - sending.done < 16) {
            const std::span<std::byte> payload = place(0, stream, sending.posted);
            fill(payload, seed_of(node() * 8 + stream, sending.posted));
            const Ticket ticket = transport.send(lane, envelope_of(sending.posted), payload, Delivery::copy_if_small);
            if (ticket == kNotNow) break;
            sending.tickets[sending.posted++] = ticket;
          }
          while (sending.done < sending.posted && transport.test_send(lane, sending.tickets[sending.done]) == Outcome::done)
            ++sending.done;
          while (receiving.posted < kMessages && receiving.posted - receiving.done < 16) {
            const Ticket ticket = transport.receive(lane, envelope_of(receiving.posted), place(1, stream, receiving.posted));
            if (ticket == kNotNow) break;
            receiving.tickets[receiving.posted++] = ticket;
          }
          while (receiving.done < receiving.posted) {
            const Outcome outcome = transport.test_receive(lane, receiving.tickets[receiving.done]);
            if (outcome == Outcome::pending) break;
            require(outcome == Outcome::done, "a receive failed: " + transport.found(lane).detail);
            require(holds(place(1, stream, receiving.done), seed_of((1 - node()) * 8 + stream, receiving.done)), "damaged");
            ++receiving.done;
          }
          all = all && sending.done == kMessages && receiving.done == kMessages;
        }
        return all;
      },
      "all messages through");
  pair.close();
}

/// A sender whose receiver doesn't take anything runs out of credits, on that stream alone.
void credits() {
  VerbsPair pair("credits", {});
  const LaneId lane{0, kStream};
  if (node() == 0) {
    std::vector<std::byte> payload(100);
    std::uint32_t sent = 0;
    while (true) {
      fill(payload, sent);
      if (pair.transport().send(lane, envelope_of(sent), payload, Delivery::copy_if_small) == kNotNow) break;
      ++sent;
      require(sent < 1000, "credits without end");
    }
    require(sent == 16, "16 credits, not " + std::to_string(sent));
    pair.finish_send(Stream::control, pair.send(Stream::control, envelope_of(0), pair.heap(0, kMiB)));
    pair.meet();  // now the receiver takes
    fill(payload, sent);
    pair.send(kStream, envelope_of(sent), payload);
  } else {
    std::vector<std::byte> into(100);
    pair.finish_receive(Stream::control, pair.receive(Stream::control, envelope_of(0), pair.heap(0, kMiB)));
    pair.meet();
    for (std::uint32_t i = 0; i <= 16; ++i) {
      pair.finish_receive(kStream, pair.receive(kStream, envelope_of(i), into));
      require(holds(into, i), "out of order");
    }
  }
  pair.close();
}

/// Both ends must agree before a byte reaches the receiver's buffer, whether the message is small or large.
void mismatch() {
  for (const std::size_t bytes : {std::size_t{40}, std::size_t{40000}}) {
    VerbsPair pair("mismatch" + std::to_string(bytes), {});
    if (node() == 0) {
      fill(pair.heap(0, bytes), 1);
      pair.send(kStream, envelope_of(5), pair.heap(0, bytes));
    } else {
      std::span<std::byte> into = pair.heap(kMiB, bytes);
      const Ticket ticket = pair.receive(kStream, envelope_of(6), into);
      Outcome outcome = Outcome::pending;
      pair.until(
          [&] {
            return (outcome = pair.transport().test_receive({0, kStream}, ticket)) != Outcome::pending;
          },
          "a verdict");
      require(outcome == Outcome::mismatch, "no mismatch was found");
      const Found found = pair.transport().found({0, kStream});
      require(found.envelope.sequence == 5 && found.bytes == bytes, "what lies there is named");
      require(std::all_of(into.begin(), into.end(), [](std::byte byte) { return byte == std::byte{}; }),
              "bytes reached the buffer");
    }
    pair.meet_moving();  // the sender answers grants only while it makes progress
  }
}

/// A sleeper wakes by the descriptor.
void sleeping() {
  VerbsPair pair("sleep", {});
  std::vector<std::byte> bytes(64);
  if (node() == 0) {
    pair.meet();
    fill(bytes, 9);
    pair.send(kStream, envelope_of(1), bytes);
  } else {
    const Ticket ticket = pair.receive(kStream, envelope_of(1), bytes);
    int sleeps = 0;
    while (pair.transport().test_receive({0, kStream}, ticket) == Outcome::pending) {
      pair.transport().arm();
      if (!pair.transport().progress()) {
        if (sleeps == 0) pair.meet();  // the message is sent when this end is about to sleep
        pollfd ready{pair.transport().descriptor(), POLLIN, 0};
        require(::poll(&ready, 1, 60'000) == 1, "nobody woke the sleeper");
        ++sleeps;
      }
      pair.transport().disarm();
      pair.transport().progress();
    }
    require(sleeps > 0 && sleeps < 20, "slept " + std::to_string(sleeps) + " times");
    require(holds(bytes, 9), "damaged");
  }
  pair.close();
}

/// A message from slab 0 into slab 1 and across the boundary.
void slabs() {
  VerbsPair pair("slabs", {.heap_bytes = kSlabBytes + 2 * kMiB});
  const std::size_t bytes = kMiB / 4;
  const std::span<std::byte> from = pair.heap(kSlabBytes - 1000, bytes);
  const std::span<std::byte> into = pair.heap(kSlabBytes - 4 * kMiB + (node() == 0 ? 0 : 4 * kMiB - bytes - 2000), bytes);
  fill(from, seed_of(node(), 1));
  const Ticket posted = pair.receive(kStream, envelope_of(1), into);
  const Ticket sent = pair.send(kStream, envelope_of(1), from);
  pair.finish_receive(kStream, posted);
  pair.finish_send(kStream, sent);
  require(holds(into, seed_of(1 - node(), 1)), "damaged at a slab's end");
  // The source crossed the boundary above; now the target does.
  const std::span<std::byte> plain = pair.heap(0, bytes);
  fill(plain, seed_of(node(), 2));
  const std::span<std::byte> target = pair.heap(kSlabBytes - 3333, bytes);
  const Ticket second = pair.receive(kStream, envelope_of(2), target);
  pair.finish_send(kStream, pair.send(kStream, envelope_of(2), plain));
  pair.finish_receive(kStream, second);
  require(holds(target, seed_of(1 - node(), 2)), "damaged across slabs");
  pair.close();

  // What is registered is known before, so that large pages can be taken for all of it.
  const posix::Mapping memory(3 * kSlabBytes);
  const std::span<std::byte> heap = memory.bytes();
  verbs::VerbsTransport alone({.heap = heap, .heap_expected = kSlabBytes + 4 * kMiB});
  const auto expect = [&](std::size_t offset, std::size_t used, std::size_t begin, std::size_t end) {
    const std::span<std::byte> all = alone.registration_of(heap.subspan(offset, used));
    require(all.data() == heap.data() + begin && all.size() == end - begin,
            std::to_string(all.size()) + " bytes would be registered for those at " + std::to_string(offset));
  };
  expect(kMiB, kMiB, 0, kSlabBytes);
  alone.register_memory(heap.subspan(kMiB, kMiB));
  require(alone.is_registered(heap.first(kSlabBytes)), "the slab isn't registered whole");
  expect(2 * kMiB, kMiB, 2 * kMiB, 3 * kMiB);
  expect(kSlabBytes - kMiB, 2 * kMiB, kSlabBytes - kMiB, kSlabBytes + 4 * kMiB);
  alone.register_memory(heap.subspan(kSlabBytes, kMiB));
  require(!alone.is_registered(heap.first(kSlabBytes + 5 * kMiB)), "more is registered than is expected to be used");
  expect(kSlabBytes, 5 * kMiB, kSlabBytes, 2 * kSlabBytes);
}

/// The largest message of the bars, once each way.
void large() {
  constexpr std::size_t kBytes = 64 * kMiB;
  VerbsPair pair("large", {.heap_bytes = 2 * kBytes + kMiB, .timeout_s = 120});
  const std::span<std::byte> from = pair.heap(777, kBytes);
  const std::span<std::byte> into = pair.heap(kBytes + 4096, kBytes);
  fill(from, seed_of(node(), 1));
  for (const int sender : {0, 1}) {
    pair.meet();
    const std::uint64_t begin = posix::now_ns();
    if (node() == sender) {
      pair.finish_send(kStream, pair.send(kStream, envelope_of(1), from));
      std::printf("64 MiB left in %.1f s\n", static_cast<double>(posix::now_ns() - begin) / 1e9);
    } else {
      pair.finish_receive(kStream, pair.receive(kStream, envelope_of(1), into));
      require(holds(into, seed_of(sender, 1)), "64 MiB arrived damaged");
    }
  }
  pair.close();
}

/// A message of another stream doesn't wait until a long one before it has left.
void turns() {
  constexpr std::size_t kLong = 64 * kMiB;
  VerbsPair pair("turns", {.heap_bytes = 2 * (kLong + kMiB), .timeout_s = 120});
  pair.open(Stream::weights);
  pair.open(Stream::kv);
  const std::span<std::byte> whole = pair.heap(0, kLong);
  const std::span<std::byte> part = pair.heap(kLong, kMiB);
  if (node() == 0) {
    fill(whole, 1);
    fill(part, 2);
    pair.meet();  // the grants are on their way
    const Ticket first = pair.send(Stream::weights, envelope_of(2), whole);
    const Ticket second = pair.send(Stream::kv, envelope_of(2), part);
    pair.finish_send(Stream::weights, first);
    pair.finish_send(Stream::kv, second);
  } else {
    const Ticket first = pair.receive(Stream::weights, envelope_of(2), whole);
    const Ticket second = pair.receive(Stream::kv, envelope_of(2), part);
    pair.meet();
    pair.finish_receive(Stream::kv, second);
    const LaneId lane{0, Stream::weights};
    require(pair.transport().test_receive(lane, first) == Outcome::pending, "1 MiB waited for 64 MiB of another stream");
    pair.finish_receive(Stream::weights, first);
    require(holds(whole, 1) && holds(part, 2), "damaged");
  }
  pair.close();
}

/// Ends whose path MTU differs agree on the smaller one.
void mtu() {
  if (node() == 1) run_shell("ip link set eth0 mtu 1500");
  {
    VerbsPair pair("mtu", {});
    const std::string chosen = pair.transport().chosen();
    require(contains(chosen, node() == 1 ? "MTU 1024" : "MTU 4096"), chosen);
    const std::span<std::byte> from = pair.heap(0, 50000);
    const std::span<std::byte> into = pair.heap(kMiB, 50000);
    fill(from, seed_of(node(), 1));
    const Ticket posted = pair.receive(kStream, envelope_of(1), into);
    pair.finish_send(kStream, pair.send(kStream, envelope_of(1), from));
    pair.finish_receive(kStream, posted);
    require(holds(into, seed_of(1 - node(), 1)), "damaged");
    pair.close();
  }
  if (node() == 1) run_shell("ip link set eth0 mtu 9000");
}

/// A wrong device, port or GID is refused, and the refusal says what is there.
void choices() {
  const auto refused = [](const std::string& device) { return refusal([&] { verbs::VerbsTransport({.device = device}); }); };
  require(contains(refused("mlx5_9"), "no such device") && contains(refused("mlx5_9"), "rxe0:1"), refused("mlx5_9"));
  require(contains(refused("rxe0:7"), "no port 7 of rxe0"), refused("rxe0:7"));
  require(contains(refused("rxe0:1:99"), "no GID of index 99"), refused("rxe0:1:99"));
  require(contains(refused("rxe0:x"), "is expected"), refused("rxe0:x"));
  const verbs::VerbsTransport chosen({});
  require(contains(chosen.chosen(), "rxe0 port 1, GID 1 ::ffff:10.77.0."), chosen.chosen());
  VerbsPair named("named", {.device = "rxe0:1:1"});
  named.close();
}

/// Locked memory too small: the error says what to raise. Runs without CAP_IPC_LOCK under a small limit.
void limit() {
  const std::string what = refusal([] {
    std::vector<std::byte> heap(kMiB);
    verbs::VerbsTransport({.device = "rxe0", .heap = heap}).register_memory(heap);
  });
  require(contains(what, "ulimit -l"), what);
  // Where nothing is demanded, it is a reason to choose another transport.
  const verbs::VerbsTransport unused({});
  require(contains(unused.why_not(), "ulimit -l") && contains(unused.why_not(), "limited to 64 KiB"), unused.why_not());
}

/// With two NICs local rank i takes the i-th.
void rails() {
  for (const int rank : {0, 1, 2}) {
    const verbs::VerbsTransport transport({.local_rank = rank, .local_ranks = 3});
    require(contains(transport.chosen(), rank % 2 == 0 ? "rxe0 port 1" : "rxe1 port 1"), transport.chosen());
    require(!contains(transport.chosen(), rank % 2 == 0 ? "rxe1" : "rxe0"), transport.chosen());
  }
  VerbsPair pair("rails", {.local_rank = 1, .local_ranks = 2});
  std::vector<std::byte> bytes(3000);
  fill(bytes, seed_of(node(), 1));
  pair.send(kStream, envelope_of(1), bytes);
  pair.finish_receive(kStream, pair.receive(kStream, envelope_of(1), bytes));
  require(holds(bytes, seed_of(1 - node(), 1)), "damaged");
  pair.close();
}

int run(const std::vector<std::string>& names) {
  const std::map<std::string, void (*)()> scenarios = {
      {"sizes", sizes},
      {"plain", plain},
      {"flight", flight},
      {"credits", credits},
      {"early", early},
      {"mismatch", mismatch},
      {"sleep", sleeping},
      {"slabs", slabs},
      {"choices", choices},
      {"limit", limit},
      {"queues", queues},
      {"mixed", mixed},
      {"rails", rails},
      {"several", several},
      {"several_or_one", several_or_one},
      {"several_unreachable", several_unreachable},
      {"several_unregistered", several_unregistered},
      {"several_capped", several_capped},
      {"several_port_down", several_port_down},
      {"several_silent", several_silent},
      {"several_explained", several_explained},
      {"several_lost", several_lost},
      {"several_lost_at_both", several_lost_at_both},
      {"large", large},
      {"turns", turns},
      {"mtu", mtu},
      {"port_flap", port_flap},
      {"cut", cut},
      {"silence", silence},
      {"ungranted", ungranted},
      {"unopened", unopened},
      {"unanswered", unanswered},
      {"port_down", port_down},
      {"odd_devices", odd_devices},
      {"odd_failures", odd_failures},
      {"odd_rings", odd_rings},
      {"odd_growth", odd_growth},
      {"odd_inline", odd_inline},
      {"odd_addresses", odd_addresses},
      {"odd_completions", odd_completions},
      {"long_flap", long_flap},
      {"lost_address", lost_address},
      {"small_packets", small_packets},
  };
  for (const std::string& name : names) {
    const std::uint64_t begin = posix::now_ns();
    try {
      scenarios.at(name)();
      std::printf("%s: good, %.2f s\n", name.c_str(), static_cast<double>(posix::now_ns() - begin) / 1e9);
    } catch (const std::exception& error) {
      std::printf("%s: FAILED: %s\n", name.c_str(), error.what());
      return 1;
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace tsprun::detail::test

int main(int count, char** arguments) { return tsprun::detail::test::run({arguments + 1, arguments + count}); }
