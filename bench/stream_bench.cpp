// One-way streams: rank 0 sends messages of one size to rank 1, several in flight. What `bench pingpong` can't show, since its
// messages wait for each other; what iperf3 shows of a bare socket.
//
//   tsprun -n 2 --intra tcp run -- build/release/bench/stream_bench 1048576 3      bytes a message, seconds
//
// Rank 1 prints "stream <transport> <bytes per message> <10^9 bytes per second>".
#include "transport/posix.h"
#include "tsprun/context.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kInFlight = 8;

/// A batch of messages; the last word of rank 0 says whether there is another.
constexpr std::size_t kBatch = 64;

double run(tsprun::Context& context, std::size_t bytes, double seconds) {
  tsprun::Communicator& world = context.world();
  tsprun::HeapBlock block = context.allocate(kInFlight * bytes, "messages in flight");
  const auto buffer = [&](std::size_t i) {
    return tsprun::Buffer(block.bytes().data() + i % kInFlight * bytes, bytes, tsprun::DType::byte);
  };
  std::array<tsprun::Work, kInFlight> works;
  std::uint64_t begin = 0;
  std::size_t messages = 0;
  for (int batch = 0;; ++batch) {
    if (batch == 1) begin = tsprun::detail::posix::now_ns();  // the first one warms up
    for (std::size_t i = 0; i < kBatch; ++i) {
      works[i % kInFlight].wait();
      works[i % kInFlight] = context.rank() == 0 ? world.post_send(buffer(i), 1) : world.post_recv(buffer(i), 0);
    }
    for (tsprun::Work& work : works) work.wait();
    if (batch > 0) messages += kBatch;
    const double elapsed = batch > 0 ? static_cast<double>(tsprun::detail::posix::now_ns() - begin) * 1e-9 : 0;
    double over = elapsed >= seconds ? 1 : 0;
    if (context.rank() == 0) world.send(std::span<const double>(&over, 1), 1);
    else world.recv(std::span<double>(&over, 1), 0);
    if (over != 0) return static_cast<double>(messages * bytes) / elapsed * 1e-9;
  }
}

/// Returns the name of the transport by which most bytes came.
std::string transport(const tsprun::Context& context) {
  const std::vector<tsprun::LinkTraffic> links = context.traffic_by_link();
  const auto received = [](const tsprun::LinkTraffic& link) {
    return link.counters.received[static_cast<std::size_t>(tsprun::Purpose::other)];
  };
  return std::string(std::ranges::max_element(links, {}, received)->transport);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const std::size_t bytes = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1 << 20;
    const double seconds = count > 2 ? std::atof(arguments[2]) : 3;
    tsprun::Context context = tsprun::Context::from_environment();
    if (context.size() != 2 || bytes == 0) {
      std::fprintf(stderr, "stream_bench: two ranks are needed, and messages that aren't empty\n");
      return 2;
    }
    const double speed = run(context, bytes, seconds);
    if (context.rank() == 1) {
      std::printf("stream %s %zu %.3f\n", transport(context).c_str(), bytes, speed);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stream_bench: %s\n", error.what());
    return 1;
  }
}
