// The heap against a plain table of what is allocated: no overlaps, alignment, reuse, commitment before use. Budgets are in
// heap_budget_test.cpp.

#include "core/memory/heap.h"

#include "transport/cause.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

namespace tsprun::detail::heap_test {
namespace {

constexpr std::size_t kReservation = std::size_t{8} << 20;

struct Reservation {
  std::vector<std::byte> storage = std::vector<std::byte>(kReservation + 4096);
  std::span<std::byte> bytes() {
    const auto address = reinterpret_cast<std::uintptr_t>(storage.data());
    return {storage.data() + (4096 - address % 4096) % 4096, kReservation};
  }
};

TEST(Heap, BlocksDontOverlapAndAreAligned) {
  Reservation reservation;
  Heap heap(reservation.bytes(), 0, {});
  std::mt19937 random(7);
  struct Held {
    HeapBlock block;
    std::byte mark;
  };
  std::vector<Held> held;
  for (int i = 0; i < 5000; ++i) {
    if (held.size() > 40 || (!held.empty() && random() % 3 == 0)) {
      const std::size_t victim = random() % held.size();
      for (const std::byte b : held[victim].block.bytes()) ASSERT_EQ(b, held[victim].mark);
      std::swap(held[victim], held.back());
      held.pop_back();
    } else {
      const std::size_t bytes = random() % 2 == 0 ? 1 + random() % 300 : 1 + random() % 60000;
      HeapBlock block = heap.allocate(bytes, "test");
      ASSERT_EQ(block.bytes().size(), bytes);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block.bytes().data()) % 64, 0U);
      ASSERT_TRUE(heap.contains(block.bytes()));
      const auto mark = static_cast<std::byte>(i);
      std::memset(block.bytes().data(), i & 0xff, bytes);
      held.push_back({std::move(block), mark});
    }
  }
  held.clear();
  EXPECT_EQ(heap.use().total, 0U);
  EXPECT_GT(heap.peaks().total, 0U);
  // Everything is one free piece again.
  EXPECT_EQ(heap.allocate(kReservation, "all").bytes().size(), kReservation);
}

TEST(Heap, RefusesMoreThanItsBudgetWithFigures) {
  Reservation reservation;
  Heap heap(reservation.bytes(), 1 << 20, {});
  const HeapBlock first = heap.allocate(600 * 1024, "first");
  try {
    const HeapBlock second = heap.allocate(500 * 1024, "the second buffer");
    FAIL() << "1.1 MB fit into a budget of 1 MiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::out_of_memory);
    const std::string text = error.what();
    for (const char* part : {"the second buffer", "512000", "614400", "1048576"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in: " << text;
    }
  }
  EXPECT_EQ(heap.use().total, 614400U);
  EXPECT_NO_THROW(heap.allocate(400 * 1024, "third"));
}

TEST(Heap, RefusesSizesNearTheLargestNumber) {
  Reservation reservation;
  Heap heap(reservation.bytes(), 0, {});
  EXPECT_THROW(heap.allocate(~std::size_t{0}, "huge"), Error);
  EXPECT_THROW(heap.allocate(~std::size_t{0} - 4095, "huge"), Error);
  EXPECT_THROW(heap.allocate(kReservation + 1, "one too many"), Error);
}

TEST(Heap, RefusesWhatIsFreeOnlyInPieces) {
  Reservation reservation;
  Heap heap(reservation.bytes(), 0, {});
  constexpr std::size_t kQuarter = kReservation / 4;
  HeapBlock a = heap.allocate(kQuarter, "a");
  const HeapBlock b = heap.allocate(kQuarter, "b");
  HeapBlock c = heap.allocate(kQuarter, "c");
  const HeapBlock d = heap.allocate(kQuarter, "d");
  a.reset();
  c.reset();
  EXPECT_THROW(heap.allocate(2 * kQuarter, "two quarters"), Error);
  EXPECT_NO_THROW(heap.allocate(kQuarter, "one quarter"));
}

TEST(Heap, CommitsBeforeUseOnceAndInOrder) {
  Reservation reservation;
  std::size_t committed = 0;
  Heap heap(reservation.bytes(), 0, [&](std::size_t offset, std::size_t bytes) {
    EXPECT_EQ(offset, committed);
    committed += bytes;
  });
  std::vector<HeapBlock> blocks;
  for (int i = 0; i < 50; ++i) {
    blocks.push_back(heap.allocate(100000, "block"));
    const auto end = static_cast<std::size_t>(blocks.back().bytes().data() + 100000 - reservation.bytes().data());
    EXPECT_LE(end, committed);
  }
  const std::size_t before = committed;
  blocks.clear();
  blocks.push_back(heap.allocate(100000, "again"));
  EXPECT_EQ(committed, before);
}

TEST(Heap, AFailedCommitChangesNothing) {
  Reservation reservation;
  bool fail = true;
  Heap heap(reservation.bytes(), 0, [&](std::size_t, std::size_t) {
    if (fail) throw Error(Cause::out_of_memory, "no memory");
  });
  EXPECT_THROW(heap.allocate(5000, "first"), Error);
  EXPECT_EQ(heap.use().total, 0U);
  fail = false;
  EXPECT_EQ(heap.allocate(kReservation, "all").bytes().size(), kReservation);
}

TEST(Heap, KnowsItsOwnMemory) {
  Reservation reservation;
  Heap heap(reservation.bytes(), 0, {});
  const std::span<std::byte> all = reservation.bytes();
  EXPECT_TRUE(heap.contains(all));
  EXPECT_TRUE(heap.contains(all.last(1)));
  EXPECT_FALSE(heap.contains({all.data() + 1, all.size()}));
  EXPECT_FALSE(heap.contains({all.data() - 1, 2}));
  std::byte elsewhere{};
  EXPECT_FALSE(heap.contains({&elsewhere, 1}));
}

TEST(HeapBlock, ZeroBytesAreEmptyAndMovesLeaveNothingBehind) {
  Reservation reservation;
  Heap heap(reservation.bytes(), 0, {});
  EXPECT_TRUE(heap.allocate(0, "nothing").bytes().empty());
  HeapBlock a = heap.allocate(100, "a");
  HeapBlock b = std::move(a);
  EXPECT_EQ(b.bytes().size(), 100U);
  b = heap.allocate(200, "b");
  EXPECT_EQ(heap.use().total, 200U);
  EXPECT_EQ(b.as<double>().size(), 25U);
}

}  // namespace
}  // namespace tsprun::detail::heap_test
