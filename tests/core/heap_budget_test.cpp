// The heap's budget: every byte of it can be used, however memory is cut; blocks keep what was written to them; the memory that
// pages take, as the kernel counts it, stays within the budget and the rest of pages that blocks fill in part.

#include "core/memory/heap.h"
#include "transport/cause.h"
#include "transport/shm/node_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <sys/stat.h>
#include <vector>

namespace tsprun::detail::heap_budget_test {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMiB = std::size_t{1} << 20;

/// A heap in node memory, as a rank's, and what it asked of it.
struct Backed {
  explicit Backed(std::uint64_t budget, bool releases = true)
      : memory(shm::NodeMemory::create_memfd({.heap_bytes = Heap::reservation_for(budget)})),
        heap(
            memory.heap(0), budget, [this](std::size_t, std::size_t bytes) { committed += bytes; },
            [this, releases](std::size_t offset, std::size_t bytes) {
              released += bytes;
              return releases && memory.release(0, offset, bytes);
            }) {
    before = taken();
  }
  /// Bytes that the kernel holds for the whole object.
  std::uint64_t taken() const {
    struct stat status {};
    EXPECT_EQ(::fstat(memory.descriptor(), &status), 0);
    return static_cast<std::uint64_t>(status.st_blocks) * 512 - before;
  }

  shm::NodeMemory memory;
  std::uint64_t before = 0;
  std::uint64_t committed = 0;
  std::uint64_t released = 0;
  Heap heap;
};

bool fits(Heap& heap, std::size_t bytes, HeapBlock& block) {
  try {
    block = heap.allocate(bytes, "block");
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::out_of_memory);
    return false;
  }
}

/// Blocks in a table of their own, each full of numbers that no other block has.
class Table {
 public:
  explicit Table(Backed& of) : of_(of) {}

  /// Takes a block, and expects it to fit if and only if the sum of what is held leaves room.
  void add(std::size_t bytes) {
    HeapBlock block;
    ASSERT_EQ(fits(of_.heap, bytes, block), held_bytes_ + bytes <= of_.heap.budget()) << bytes << " beside " << held_bytes_;
    if (block.bytes().empty()) return;
    const auto begin = reinterpret_cast<std::uintptr_t>(block.bytes().data());
    const auto next = places_.lower_bound(begin);
    ASSERT_TRUE(next == places_.end() || begin + bytes <= next->first);
    ASSERT_TRUE(next == places_.begin() || std::prev(next)->first + std::prev(next)->second <= begin);
    places_.emplace(begin, bytes);
    held_bytes_ += bytes;
    write(block, ++number_);
    held_.push_back({std::move(block), number_});
  }
  void remove(std::size_t index) {
    std::swap(held_[index], held_.back());
    const HeapBlock& block = held_.back().block;
    ASSERT_TRUE(holds(block, held_.back().number));
    places_.erase(reinterpret_cast<std::uintptr_t>(block.bytes().data()));
    held_bytes_ -= block.bytes().size();
    held_.pop_back();
  }
  std::size_t size() const { return held_.size(); }
  std::size_t bytes() const { return held_bytes_; }

 private:
  struct Held {
    HeapBlock block;
    std::uint64_t number;
  };
  static std::uint8_t mark(std::uint64_t number, std::size_t at) {
    return static_cast<std::uint8_t>((number * 2654435761U + at / 61) >> 7);
  }
  static void write(const HeapBlock& block, std::uint64_t number) {
    for (std::size_t i = 0; i < block.bytes().size(); ++i) block.bytes()[i] = std::byte{mark(number, i)};
  }
  static bool holds(const HeapBlock& block, std::uint64_t number) {
    for (std::size_t i = 0; i < block.bytes().size(); ++i) {
      if (block.bytes()[i] != std::byte{mark(number, i)}) return false;
    }
    return true;
  }

  Backed& of_;
  std::vector<Held> held_;
  std::map<std::uintptr_t, std::size_t> places_;
  std::size_t held_bytes_ = 0;
  std::uint64_t number_ = 0;
};

TEST(HeapBudget, EveryByteCanBeUsedAndDataStaysIntact) {
  constexpr std::size_t kBudget = 2 * kMiB;
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    Backed backed(kBudget);
    Table table(backed);
    std::mt19937 random(seed);
    std::size_t failures = 0;
    for (int i = 0; i < 1500; ++i) {
      const std::size_t held = table.bytes();
      if (failures > 3) {
        // It is full. A third of the blocks, here and there.
        for (std::size_t some = table.size() / 3 + 1; some > 0 && table.size() > 0; --some) table.remove(random() % table.size());
        failures = 0;
      } else {
        // From some bytes to a quarter of the budget.
        const std::size_t bytes = 1 + random() % (std::size_t{1} << (6 + random() % 14));
        table.add(bytes);
        if (table.bytes() == held) ++failures;
      }
      ASSERT_FALSE(testing::Test::HasFatalFailure());
      // Each block fills at most two pages in part.
      ASSERT_LE(backed.taken(), kBudget + 2 * kPage * table.size()) << "step " << i;
      ASSERT_LE(backed.taken(), backed.heap.resident());
    }
    EXPECT_GT(backed.released, 0U);
    while (table.size() > 0) table.remove(0);
    EXPECT_EQ(backed.heap.use().total, 0U);
  }
}

TEST(HeapBudget, ABlockAsLargeAsAllHolesTogetherFits) {
  constexpr std::size_t kBudget = 4 * kMiB;
  constexpr std::size_t kBlocks = 64;
  Backed backed(kBudget);
  std::vector<HeapBlock> blocks;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(backed.heap.allocate(kBudget / kBlocks, "piece"));
    std::ranges::fill(blocks.back().bytes(), static_cast<std::byte>(i + 1));
  }
  for (std::size_t i = 0; i < kBlocks; i += 2) blocks[i].reset();
  HeapBlock half = backed.heap.allocate(kBudget / 2, "all that is free");
  std::ranges::fill(half.bytes(), std::byte{0xee});
  EXPECT_LE(backed.taken(), kBudget + 2 * kPage);
  EXPECT_THROW(backed.heap.allocate(1, "one too many"), Error);
  for (std::size_t i = 1; i < kBlocks; i += 2) {
    for (const std::byte b : blocks[i].bytes()) ASSERT_EQ(b, static_cast<std::byte>(i + 1));
  }
  for (const std::byte b : half.bytes()) ASSERT_EQ(b, std::byte{0xee});
}

/// Blocks that are taken and given back in one order, round after round; where they lay.
std::vector<const std::byte*> round_of(Heap& heap, std::uint32_t seed, std::size_t most) {
  std::mt19937 random(seed);
  std::vector<HeapBlock> held;
  std::vector<const std::byte*> places;
  for (int i = 0; i < 400; ++i) {
    const std::size_t bytes = 1 + random() % 40000;
    while (heap.use().total + bytes > most) {
      const std::size_t victim = random() % held.size();
      std::swap(held[victim], held.back());
      held.pop_back();
    }
    held.push_back(heap.allocate(bytes, "block"));
    places.push_back(held.back().bytes().data());
    held.back().bytes().back() = std::byte{1};
  }
  return places;
}

TEST(HeapBudget, ARepeatedProgramUsesTheSamePlacesAndCommitsNothingAnew) {
  constexpr std::size_t kMost = 2 * kMiB;
  Backed backed(2 * kMost);
  const HeapBlock kept = backed.heap.allocate(100000, "kept all the time");
  const std::vector<const std::byte*> first = round_of(backed.heap, 5, kMost);
  const std::uint64_t committed = backed.committed;
  EXPECT_EQ(round_of(backed.heap, 5, kMost), first);
  EXPECT_EQ(backed.committed, committed);
  EXPECT_EQ(backed.released, 0U);
}

TEST(HeapBudget, HoldsWhereNothingCanBeGivenBack) {
  Backed backed(4 * kMiB, false);
  Table table(backed);
  std::mt19937 random(9);
  for (int i = 0; i < 600; ++i) {
    if (table.size() > 0 && random() % 2 == 0) table.remove(random() % table.size());
    else table.add(1 + random() % 600000);
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
  EXPECT_GT(backed.released, 0U);  // it was asked for, once
}

TEST(HeapBudget, ErrorsTellWhatIsInUse) {
  Backed backed(kMiB);
  const HeapBlock first = backed.heap.allocate(600001, "first");
  try {
    const HeapBlock second = backed.heap.allocate(500000, "the second buffer", Category::workspace);
    FAIL() << "1.1 MB fit into a budget of 1 MiB";
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* part : {"the second buffer", "500000", "600001", "1048576", "workspace", "communication"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in: " << text;
    }
  }
  EXPECT_EQ(backed.heap.allocate(kMiB - 600001, "the rest").bytes().size(), kMiB - 600001);
}

TEST(PageRuns, AreASetOfPages) {
  constexpr std::size_t kPages = 200;
  std::mt19937 random(3);
  PageRuns runs;
  std::set<std::size_t> oracle;
  for (int i = 0; i < 3000; ++i) {
    std::size_t begin = random() % kPages;
    std::size_t end = random() % kPages;
    if (begin > end) std::swap(begin, end);
    std::size_t missing = 0;
    for (std::size_t page = begin; page < end; ++page) missing += oracle.contains(page) ? 0U : 1U;
    ASSERT_EQ(runs.missing(begin, end), missing);
    if (random() % 2 == 0) {
      runs.add(begin, end);
      for (std::size_t page = begin; page < end; ++page) oracle.insert(page);
    } else {
      const std::size_t most = random() % 30;
      std::set<std::size_t> taken;
      const std::size_t count = runs.take_last(begin, end, most, [&](std::size_t from, std::size_t to) {
        for (; from < to; ++from) ASSERT_TRUE(taken.insert(from).second);
      });
      std::set<std::size_t> expected;
      for (auto page = oracle.rbegin(); page != oracle.rend() && expected.size() < most; ++page) {
        if (*page >= begin && *page < end) expected.insert(*page);
      }
      ASSERT_EQ(taken, expected);
      ASSERT_EQ(count, expected.size());
      for (const std::size_t page : taken) oracle.erase(page);
    }
    ASSERT_EQ(runs.count(), oracle.size());
    std::set<std::size_t> all;
    std::size_t end_of_last = 0;
    runs.for_each([&](std::size_t from, std::size_t to) {
      ASSERT_TRUE(all.empty() || from > end_of_last) << "runs touch";
      end_of_last = to;
      for (; from < to; ++from) all.insert(from);
    });
    ASSERT_EQ(all, oracle);
  }
}

}  // namespace
}  // namespace tsprun::detail::heap_budget_test
