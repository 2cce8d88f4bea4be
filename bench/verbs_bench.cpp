// The verbs transport between two machines of the laboratory, as perftest measures the bare device: rendezvous messages of 64
// KiB, 256 KiB and 1 MiB one after another (ib_write_bw) and round trips of 8 bytes (ib_write_lat, ib_send_lat). NODE and SHARE
// say who and where; node 0 prints
//
//   bw <bytes per message> <MB/s>      MB as perftest counts them: 2^20
//   lat <bytes> <microseconds>         half the round trip, the median

#include "tests/rdma/verbs_pair.h"
#include "transport/posix.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <string>
#include <vector>

namespace {

using namespace tsprun;
using namespace tsprun::detail;

constexpr Stream kStream = Stream::weights;
constexpr std::size_t kWindow = 8;  // messages in flight

Envelope envelope_of(std::uint32_t sequence) { return {1, sequence, 0, Purpose::other}; }

double seconds_since(std::uint64_t begin_ns) { return static_cast<double>(posix::now_ns() - begin_ns) / 1e9; }

void bandwidth(test::VerbsPair& pair, std::size_t bytes, std::uint32_t messages) {
  std::deque<Ticket> tickets;
  pair.meet();
  const std::uint64_t begin = posix::now_ns();
  for (std::uint32_t i = 0; i < messages + kWindow; ++i) {
    if (i >= kWindow) {
      if (test::node() == 0) {
        pair.finish_send(kStream, tickets.front());
      } else {
        pair.finish_receive(kStream, tickets.front());
      }
      tickets.pop_front();
    }
    if (i >= messages) continue;
    const std::span<std::byte> memory = pair.heap(i % kWindow * bytes, bytes);
    tickets.push_back(test::node() == 0 ? pair.send(kStream, envelope_of(i), memory)
                                        : pair.receive(kStream, envelope_of(i), memory));
  }
  if (test::node() == 0) {
    std::printf("bw %zu %.3f\n", bytes, static_cast<double>(bytes) * messages / (1 << 20) / seconds_since(begin));
  }
  pair.meet();
}

void latency(test::VerbsPair& pair, std::size_t bytes, std::uint32_t rounds) {
  std::vector<std::byte> memory(bytes);
  std::vector<double> times;
  pair.meet();
  for (std::uint32_t i = 0; i < rounds; ++i) {
    const std::uint64_t begin = posix::now_ns();
    if (test::node() == 0) pair.send(kStream, envelope_of(i), memory);
    pair.finish_receive(kStream, pair.receive(kStream, envelope_of(i), memory));
    if (test::node() == 1) pair.send(kStream, envelope_of(i), memory);
    times.push_back(seconds_since(begin) * 1e6 / 2);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  if (test::node() == 0) std::printf("lat %zu %.1f\n", bytes, times[rounds / 2]);
  pair.meet();
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const std::string round = count > 1 ? arguments[1] : "0";
    const auto messages = static_cast<std::uint32_t>(count > 2 ? std::atoi(arguments[2]) : 16);
    const auto rounds = static_cast<std::uint32_t>(count > 3 ? std::atoi(arguments[3]) : 200);
    constexpr std::size_t kLargest = std::size_t{1} << 20;
    test::VerbsPair pair("bench" + round, {.heap_bytes = kWindow * kLargest});
    for (const std::uint32_t parts : {16U, 4U, 1U}) bandwidth(pair, kLargest / parts, messages * parts);
    pair.poll_for(std::uint64_t{60'000'000'000});  // as perftest: a round trip here is about as long as an engine polls
    latency(pair, 8, rounds);
    pair.close();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "verbs_bench: %s\n", error.what());
    return 1;
  }
}
