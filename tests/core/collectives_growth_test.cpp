// A thousand calls of each kind leave nothing behind: no descriptor, no heap, no memory.

#include "tests/support/calls.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <malloc.h>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tsprun::detail::test::collectives_growth_test {
namespace {

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

/// A field of /proc/self/status in bytes.
std::size_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoull(line.substr(field.size() + 1)) * 1024;
  }
  ADD_FAILURE() << "no " << field << " in /proc/self/status";
  return 0;
}

/// Descriptors and memory that all ranks of this process hold together.
struct Holdings {
  std::ptrdiff_t descriptors = open_descriptors();
  std::size_t allocated = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;  ///< 0 under sanitizers, which have their own allocator
  std::size_t shared = status_bytes("RssShmem");                          ///< pages of node memory that were touched
};

class Growth : public testing::TestWithParam<Op> {};

TEST_P(Growth, IsNoneOverAThousandCalls) {
  constexpr int kRanks = 3;
  constexpr int kCalls = 1000;
  // Sizes on both sides of staging; plain memory goes through the heap.
  std::vector<Call> calls;
  for (std::size_t count : {std::size_t{5}, std::size_t{2000}, std::size_t{20'000}}) {
    for (Where where : {Where::heap, Where::plain}) {
      for (bool posted : {false, true}) {
        for (Algorithm algorithm : algorithms_of(GetParam())) {
          Call call;
          call.op = GetParam();
          call.counts.assign(kRanks, count);
          call.where = where;
          call.posted = posted;
          call.options.algorithm = algorithm;
          calls.push_back(call);
        }
      }
    }
  }
  run_ranks(kRanks, [&](Context& context) {
    auto rounds = [&](int n) {
      for (int i = 0; i < n; ++i) run(context, context.world(), calls[static_cast<std::size_t>(i) % calls.size()]);
      context.world().barrier();
    };
    // Caches, free lists and the lists of staging's readers have their final size.
    rounds(kCalls);
    // Rank 0 measures while the others wait: the measuring itself opens files.
    const std::uint64_t heap = heap_of(context).use().total;
    std::optional<Holdings> before;
    if (context.rank() == 0) before.emplace();
    context.world().barrier();
    rounds(kCalls);
    EXPECT_EQ(heap_of(context).use().total, heap);
    context.world().barrier();
    if (context.rank() == 0) {
      const Holdings after;
      EXPECT_EQ(after.descriptors, before->descriptors);
      EXPECT_LE(after.allocated, before->allocated + 16 * 1024);
      EXPECT_LE(after.shared, before->shared + 64 * 1024);
    }
    context.world().barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(All, Growth, testing::ValuesIn(kCallable),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST(Growth, IsNoneOverAThousandGroups) {
  run_ranks(2, [](Context& context) {
    const std::uint64_t heap = heap_of(context).use().total;
    for (int i = 0; i < 1000; ++i) {
      const std::vector<int> both = {i % 2, 1 - i % 2};
      Communicator group = context.world().subgroup(both);
      group.barrier();
    }
    EXPECT_EQ(heap_of(context).use().total, heap);
  });
}

/// Every algorithm, with ranks that run ahead of each other: where the heap holds few staged payloads, the fast wait for the
/// slow.
class FullHeap : public testing::TestWithParam<Op> {};

TEST_P(FullHeap, WaitsForReadersInsteadOfFailing) {
  constexpr int kRanks = 3;
  constexpr std::size_t kHeap = std::size_t{1} << 20;
  for (const Algorithm algorithm : algorithms_of(GetParam())) {
    run_ranks(kRanks,
              [&](Context& context) {
                Call call;
                call.op = GetParam();
                call.counts.assign(kRanks, 60'000 / 4 / kRanks);
                call.posted = true;
                call.where = Where::plain;
                call.options.algorithm = algorithm;
                for (int slow = 0; slow < kRanks; ++slow) {
                  std::vector<std::unique_ptr<Running>> started;
                  if (context.rank() == slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
                  for (int i = 0; i < 20; ++i) {
                    call.seed = static_cast<std::uint64_t>(i);
                    call.root = i % kRanks;
                    started.push_back(start(context, context.world(), call));
                  }
                  for (const auto& each : started) each->finish();
                }
                EXPECT_LE(heap_of(context).peaks().total, kHeap);
              },
              {.heap_bytes = kHeap});
  }
}

INSTANTIATE_TEST_SUITE_P(All, FullHeap, testing::ValuesIn(kCallable),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace tsprun::detail::test::collectives_growth_test
