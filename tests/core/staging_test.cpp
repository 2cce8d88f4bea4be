// Staging memory: what small payloads wait in until slower peers have read them. What it takes depends on the streams in use
// alone; payloads arrive whole however far their sender runs ahead.
#include "core/collectives/choice.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <thread>
#include <vector>

namespace tsprun::detail::test::staging_test {
namespace {

/// Lengths in words of 8 B, of payloads that are staged: larger than kCopiedBytes, at most kStagedBytes.
std::vector<std::size_t> lengths(std::size_t count) {
  std::mt19937 random(11);
  std::uniform_int_distribution<std::size_t> any(kCopiedBytes / 8 + 1, kStagedBytes / 8);
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(i % 5 == 0 ? kStagedBytes / 8 : any(random) >> (i % 4 == 3 ? 3 : 0));
  for (std::size_t& each : all) each = std::max(each, kCopiedBytes / 8 + 1);
  return all;
}

std::uint64_t word(std::size_t payload, std::size_t at) { return payload * 1'000'003 + at; }

/// Broadcasts by rank 0, while the others come late: it runs ahead as far as it may.
void broadcast_to_late_ranks(Context& context, Stream stream) {
  using namespace std::chrono_literals;
  const std::vector<std::size_t> all = lengths(200);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (context.rank() != 0 && i % 40 == 0) std::this_thread::sleep_for(2ms * context.rank());
    std::vector<std::uint64_t> payload(all[i]);
    if (context.rank() == 0) {
      for (std::size_t at = 0; at < payload.size(); ++at) payload[at] = word(i, at);
    }
    context.world().broadcast(Buffer(std::as_writable_bytes(std::span(payload)).data(), payload.size() * 8, DType::byte), 0,
                              {.stream = stream});
    for (std::size_t at = 0; at < payload.size(); ++at) ASSERT_EQ(payload[at], word(i, at)) << i;
  }
}

TEST(Staging, TakesOneRingAStreamHoweverFarARankRunsAhead) {
  run_ranks(3, [](Context& context) {
    const std::uint64_t heap = heap_of(context).use().total;
    for (const Stream stream : {Stream::kv, Stream::gradients, Stream::kv}) broadcast_to_late_ranks(context, stream);
    context.world().barrier();
    EXPECT_EQ(heap_of(context).peaks().total - heap, context.rank() == 0 ? 2 * kStagingRingBytes : 0);
  });
}

/// A rank without peers has nobody to stage for.
TEST(Staging, TakesNothingOnARankAlone) {
  run_ranks(1, [](Context& context) {
    std::vector<float> values(4000);
    context.world().all_reduce(Buffer(std::span(values)), Reduction::sum);
    context.world().broadcast(Buffer(std::span(values)), 0);
    EXPECT_EQ(heap_of(context).peaks().total, 0U);
  });
}

/// The ring of one stream is full of what a peer hasn't read; operations of another stream with that peer go on.
TEST(Staging, OfOneStreamHoldsUpNoOther) {
  run_ranks(2, [](Context& context) {
    constexpr std::size_t kWords = kStagedBytes / 8;
    constexpr std::size_t kMessages = 6;  // three times the ring
    Communicator& world = context.world();
    std::vector<std::vector<std::uint64_t>> payloads(kMessages, std::vector<std::uint64_t>(kWords));
    const auto bytes = [](std::vector<std::uint64_t>& words) {
      return Buffer(std::as_writable_bytes(std::span(words)).data(), words.size() * 8, DType::byte);
    };
    std::vector<std::uint64_t> other(kWords, context.rank() == 0 ? 7 : 0);
    if (context.rank() == 0) {
      std::vector<Work> works;
      for (std::size_t i = 0; i < kMessages; ++i) {
        for (std::size_t at = 0; at < kWords; ++at) payloads[i][at] = word(i, at);
        works.push_back(world.post_broadcast(bytes(payloads[i]), 0, {.stream = Stream::weights}));
      }
      world.broadcast(bytes(other), 0, {.stream = Stream::kv});
      world.barrier();
      for (Work& work : works) work.wait();
    } else {
      world.broadcast(bytes(other), 0, {.stream = Stream::kv});
      EXPECT_EQ(other, std::vector<std::uint64_t>(kWords, 7));
      world.barrier();
      for (std::size_t i = 0; i < kMessages; ++i) {
        world.broadcast(bytes(payloads[i]), 0, {.stream = Stream::weights});
        for (std::size_t at = 0; at < kWords; ++at) ASSERT_EQ(payloads[i][at], word(i, at)) << i;
      }
    }
  });
}

}  // namespace
}  // namespace tsprun::detail::test::staging_test
