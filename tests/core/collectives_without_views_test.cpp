// The collectives on a transport through which no peer's memory can be viewed, as over a network: every algorithm gives what it
// gives with views, bit for bit.

#include "core/collectives/communicator_state.h"
#include "core/collectives/staging.h"
#include "tests/support/calls.h"
#include "transport/forwarding_transport.h"
#include "transport/shm/shm_transport.h"

#include <gtest/gtest.h>

#include <cstring>
#include <exception>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::collectives_without_views_test {
namespace {

/// Shared memory that pretends to be a wire.
class Blindfold final : public ForwardingTransport {
 public:
  Blindfold(shm::NodeMemory& memory, int rank) : ForwardingTransport(inner_), inner_(memory, rank) {}

  std::size_t plain_limit() const override { return 512; }
  bool can_receive_into(std::span<const std::byte> memory) const override { return inner_.is_registered(memory); }
  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override {
    if (into.size() > plain_limit() && !can_receive_into(into))
      throw std::logic_error("received into memory that isn't registered");
    return inner_.receive(lane, envelope, into);
  }
  Ticket view(LaneId, const Envelope&, std::size_t) override { throw std::logic_error("a view through a blindfold"); }
  bool can_view(int) const override { return false; }
  std::span<const std::byte> access(LaneId, Ticket, std::size_t, std::size_t) override {
    throw std::logic_error("an access through a blindfold");
  }
  void release(LaneId, Ticket) override { throw std::logic_error("a release through a blindfold"); }

 private:
  shm::ShmTransport inner_;
};

/// One rank's parts, put together by hand. With `blind` by the transport above.
struct Rank {
  Rank(shm::NodeMemory& memory, int rank, bool blind)
      : heap(memory.heap(rank), 0, {}),
        sighted(memory, rank),
        blindfold(memory, rank),
        engine(FlightBoard(memory), rank, routes(memory, blind ? static_cast<Transport*>(&blindfold) : &sighted),
               memory.doorbell(rank), {.timeout_ns = 60'000'000'000, .oversubscribed = true}),
        staging(heap),
        world(CommunicatorState::make(engine, heap, staging, choices, all(memory))) {}

  static std::vector<Route> routes(const shm::NodeMemory& memory, Transport* transport) {
    std::vector<Route> routes;
    for (std::uint32_t r = 0; r < memory.layout().local_ranks; ++r) routes.push_back({transport, static_cast<int>(r)});
    return routes;
  }
  static std::vector<int> all(const shm::NodeMemory& memory) {
    std::vector<int> ranks(memory.layout().local_ranks);
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  Heap heap;
  shm::ShmTransport sighted;
  Blindfold blindfold;
  Engine engine;
  Staging staging;
  ChoiceTable choices;
  Communicator world;
};

/// Runs every operation once. Returns all results, one after another.
std::vector<float> all_operations(Rank& rank, std::size_t count, Algorithm algorithm, bool in_heap) {
  Communicator& world = rank.world;
  const auto n = static_cast<std::size_t>(world.size());
  const auto p = static_cast<std::size_t>(world.rank());
  // An operation that doesn't have the algorithm is direct.
  const auto options = [algorithm](Op op) {
    const bool has_it = algorithm == Algorithm::automatic || has_algorithm(op, algorithm);
    return CallOptions{.algorithm = has_it ? algorithm : Algorithm::direct};
  };
  HeapBlock block;
  std::vector<float> plain;
  std::span<float> input;
  if (in_heap) {
    block = rank.heap.allocate(n * count * sizeof(float), "input");
    input = block.as<float>();
  } else {
    plain.resize(n * count);
    input = plain;
  }
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = 1.0F / static_cast<float>(1 + (i * 31 + p * 17) % 1009);

  std::vector<float> results;
  const auto keep = [&results](const std::vector<float>& values) { results.insert(results.end(), values.begin(), values.end()); };
  std::vector<float> whole(n * count);
  std::vector<float> part(count);
  world.all_gather(input.first(count), std::span(whole), options(Op::all_gather));
  keep(whole);
  world.all_to_all(input, std::span(whole));
  keep(whole);
  world.all_reduce(input, std::span(whole), Reduction::sum, options(Op::all_reduce));
  keep(whole);
  world.reduce_scatter(input, std::span(part), Reduction::sum, options(Op::reduce_scatter));
  keep(part);
  world.reduce(input.first(count), std::span(part), Reduction::max, world.size() - 1, options(Op::reduce));
  keep(part);
  if (p == 0) std::copy_n(input.begin(), count, part.begin());
  world.broadcast(std::span(part), 0, options(Op::broadcast));
  keep(part);
  if (world.size() > 1) {
    const int right = (world.rank() + 1) % world.size();
    const int left = (world.rank() + world.size() - 1) % world.size();
    if (p == 0) {
      world.send(input.first(count), right);
      world.recv(std::span(part), left);
    } else {
      world.recv(std::span(part), left);
      world.send(input.first(count), right);
    }
    keep(part);
  }
  const int two_on = (world.rank() + 2) % world.size();
  const int two_back = (world.rank() + 2 * world.size() - 2) % world.size();
  world.send_recv(input.first(count), two_on, std::span(part), two_back);
  keep(part);
  // The last chunk first, a hole before each.
  std::vector<std::size_t> counts(n);
  std::vector<std::size_t> offsets(n);
  std::size_t end = 0;
  for (std::size_t r = n; r-- > 0;) {
    counts[r] = count / (1 + r % 3);
    offsets[r] = end + r % 2;
    end = offsets[r] + counts[r];
  }
  std::vector<float> spread(end, 7.0F);
  world.all_gather_v(input.first(counts[p]), std::span(spread), counts, offsets, options(Op::all_gather));
  keep(spread);
  world.reduce_scatter_v(std::span<const float>(spread), std::span(part).first(counts[p]), counts, offsets, Reduction::sum,
                         options(Op::reduce_scatter));
  keep(part);
  world.barrier();
  return results;
}

std::vector<std::vector<float>> run(int ranks, std::size_t count, Algorithm algorithm, bool in_heap, bool blind) {
  shm::NodeMemory memory = shm::NodeMemory::create_memfd({.local_ranks = static_cast<std::uint32_t>(ranks),
                                                          .heap_bytes = 256 << 20,
                                                          .world_size = static_cast<std::uint32_t>(ranks)});
  std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      try {
        Rank rank(memory, r, blind);
        results[i] = all_operations(rank, count, algorithm, in_heap);
      } catch (const std::exception& failure) {
        failures[i] = failure.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  return results;
}

class WithoutViews : public testing::TestWithParam<Algorithm> {};

TEST_P(WithoutViews, ResultsAreThoseWithViewsBitForBit) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    // Within a line, beyond the plain limit, and two ring pieces, which eight ranks would only make slow.
    for (const std::size_t count : std::initializer_list<std::size_t>{0, 3, 700, 70'003}) {
      if (ranks == 8 && count > 700) continue;
      for (const bool in_heap : {false, true}) {
        const auto blind = run(ranks, count, GetParam(), in_heap, true);
        const auto sighted = run(ranks, count, GetParam(), in_heap, false);
        for (std::size_t r = 0; r < blind.size(); ++r) {
          ASSERT_EQ(blind[r].size(), sighted[r].size());
          if (blind[r].empty()) continue;
          ASSERT_EQ(std::memcmp(blind[r].data(), sighted[r].data(), blind[r].size() * sizeof(float)), 0)
              << ranks << " ranks, " << count << " elements, rank " << r;
        }
      }
    }
  }
}

/// Returns all algorithms that any operation has and that run on every group, in the canonical order of sums.
std::set<Algorithm> all_algorithms() {
  std::set<Algorithm> all = {Algorithm::automatic};
  for (const AlgorithmRow& row : algorithm_rows()) {
    if (row.why_not == nullptr && !row.reorders_sums) all.insert(row.algorithm);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Algorithms, WithoutViews, testing::ValuesIn(all_algorithms()),
                         [](const testing::TestParamInfo<Algorithm>& parameter) { return std::string(name(parameter.param)); });

}  // namespace
}  // namespace tsprun::detail::collectives_without_views_test
