// The memory that the ranks of a node share.

#include "transport/shm/node_memory.h"
#include "tests/transport/own_objects.h"
#include "transport/cause.h"
#include "transport/machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::shm::node_memory_test {
namespace {

NodeLayout layout_of(std::uint32_t ranks, std::uint64_t heap_bytes = 16ULL << 20) {
  NodeLayout layout;
  layout.local_ranks = layout.world_size = ranks;
  layout.heap_bytes = heap_bytes;
  return layout;
}

posix::UniqueFd duplicate(const NodeMemory& memory) { return posix::UniqueFd(::fcntl(memory.descriptor(), F_DUPFD, 0)); }

/// Memory that the kernel really gave to an object.
std::uint64_t committed_bytes(const NodeMemory& memory) {
  struct stat status {};
  EXPECT_EQ(::fstat(memory.descriptor(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

void expect_error(Cause cause, const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), cause) << error.what();
    EXPECT_NE(std::string(error.what()), "");
  }
}

TEST(NodeMemory, IsTheSameForAllWhoAttach) {
  for (const bool posix_object : {false, true}) {
    const NodeMemory maker = posix_object ? NodeMemory::create_posix(layout_of(3)) : NodeMemory::create_memfd(layout_of(3));
    const NodeMemory other = NodeMemory::attach(duplicate(maker));
    EXPECT_EQ(other.layout().local_ranks, 3U);
    EXPECT_EQ(other.layout().heap_bytes, 16U << 20);
    EXPECT_NE(other.base(), maker.base());
    maker.page(2)[7] = std::byte{7};
    EXPECT_EQ(other.page(2)[7], std::byte{7});
    maker.job_bytes().back() = std::byte{5};
    EXPECT_EQ(other.job_bytes().back(), std::byte{5});
    other.doorbell(2).arm();
    EXPECT_EQ(maker.doorbell(2).armed.load(), 1U);
  }
}

TEST(NodeMemory, PartsNeitherOverlapNorLeaveTheObject) {
  const NodeMemory memory = NodeMemory::create_memfd(layout_of(4));
  struct Part {
    const std::byte* begin;
    std::size_t bytes;
  };
  std::vector<Part> parts;
  for (int i = 0; i <= 4; ++i) parts.push_back({memory.page(i).data(), memory.page(i).size()});
  for (int i = 0; i < 4; ++i) {
    parts.push_back({reinterpret_cast<const std::byte*>(&memory.doorbell(i)), sizeof(Doorbell)});
    parts.push_back({memory.heap(i).data(), memory.heap(i).size()});
    EXPECT_EQ(memory.heap(i).size(), 16U << 20);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.heap(i).data()) % kPage, 0U);
    for (int j = 0; j < 4; ++j) {
      for (int stream = 0; stream < kQueues; ++stream)
        parts.push_back({memory.lane(i, j, static_cast<Stream>(stream)), kLaneSize});
    }
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
  EXPECT_GE(parts.front().begin, memory.job_bytes().data() + kJobBytes) << "a part lies over the header";
  EXPECT_EQ(memory.job_bytes().data() + kJobBytes, memory.base() + kPage);
  for (std::size_t i = 1; i < parts.size(); ++i) EXPECT_LE(parts[i - 1].begin + parts[i - 1].bytes, parts[i].begin);
  EXPECT_LE(parts.back().begin + parts.back().bytes, memory.base() + memory.layout().total_bytes());
}

TEST(NodeMemory, OfAMemfdCostsOnlyWhatIsTouched) {
  const NodeMemory memory = NodeMemory::create_memfd(layout_of(8, 8ULL << 30));
  EXPECT_LT(committed_bytes(memory), 64U << 10);
  memory.heap(3)[5ULL << 30] = std::byte{1};
  EXPECT_LT(committed_bytes(memory), 128U << 10);
}

TEST(NodeMemory, OfAPosixObjectHasNoNameAndIsAllocatedBeforeUse) {
  const auto before = test::own_objects();
  NodeMemory memory = NodeMemory::create_posix(layout_of(2));
  EXPECT_EQ(test::own_objects(), before);
  EXPECT_GE(committed_bytes(memory), memory.layout().heaps_offset());
  const std::uint64_t without_heap = committed_bytes(memory);
  memory.commit(1, 1 << 20, 3 << 20);
  EXPECT_EQ(committed_bytes(memory), without_heap + (3 << 20));
}

/// Bytes of large pages by which this process sees memory objects.
std::uint64_t in_large_pages() {
  std::ifstream file("/proc/self/smaps");
  std::uint64_t sum = 0;
  for (std::string line; std::getline(file, line);) {
    unsigned long kib = 0;
    if (std::sscanf(line.c_str(), "ShmemPmdMapped: %lu kB", &kib) == 1) sum += kib * 1024;
  }
  return sum;
}

/// Returns whether all bytes, of which there are some, are this one.
bool are_all(std::span<const std::byte> bytes, std::byte value) {
  return bytes[0] == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

/// Returns whether this system makes a large page of a memory object's small ones when it is asked to (since Linux 6.1).
bool gives_large_pages() {
  constexpr std::size_t kLarge = std::size_t{2} << 20;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  const NodeMemory memory = NodeMemory::create_memfd(layout_of(1));
  std::byte* const pages = memory.base() + kLarge;
  std::fill(pages, pages + 2 * kLarge, std::byte{1});
  return ::madvise(pages, 2 * kLarge, kCollapse) == 0;
}

TEST(NodeMemory, LaysLargePagesUnderWhatIsCommitted) {
  constexpr std::size_t kLarge = std::size_t{2} << 20;
  const bool gives = gives_large_pages();
  for (const bool posix_object : {false, true}) {
    NodeMemory memory = posix_object ? NodeMemory::create_posix(layout_of(2)) : NodeMemory::create_memfd(layout_of(2));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.base()) % kLarge, 0U);
    const std::uint64_t before = committed_bytes(memory);
    memory.commit(1, 0, kLarge / 2);  // spans no large page
    const std::uint64_t small = committed_bytes(memory) - before;
    EXPECT_EQ(small, posix_object ? kLarge / 2 : 0);
    memory.commit(1, kLarge / 2, 7 * kLarge);
    const std::uint64_t all = committed_bytes(memory) - before - small;
    EXPECT_LE(all, 7 * kLarge);
    ASSERT_TRUE(are_all(memory.heap(1), std::byte{0}));
    const std::span<std::byte> used = memory.heap(1).subspan(kLarge / 2, 7 * kLarge);
    std::fill(used.begin(), used.end(), std::byte{9});
    const NodeMemory peer = NodeMemory::attach(duplicate(memory));
    ASSERT_TRUE(are_all(peer.heap(1).subspan(kLarge / 2, 7 * kLarge), std::byte{9}));
    EXPECT_EQ(memory.heap(1)[kLarge / 2 + 7 * kLarge], std::byte{0});
    if (gives && !posix_object) {
      EXPECT_GE(all, 6 * kLarge);
      EXPECT_GE(in_large_pages(), 6 * kLarge) << "they were made, but aren't mapped as such";
    }
    ASSERT_TRUE(memory.release(1, kLarge / 2, 7 * kLarge));
    EXPECT_EQ(peer.heap(1)[kLarge], std::byte{0});
  }
  if (!gives) GTEST_SKIP() << "small pages were right, but this system gives no large ones (they need Linux 6.1)";
}

TEST(NodeMemory, LaysAllLargePagesWhereThreadsShareThem) {
  constexpr std::size_t kBytes = std::size_t{200} << 20;  // several pieces, the last one shorter
  if (!gives_large_pages() || machine::available_memory() < 8 * kBytes)
    GTEST_SKIP() << "this system gives no large pages, or has little memory";
  NodeMemory memory = NodeMemory::create_memfd(layout_of(1, 2 * kBytes));
  const std::thread::id caller = std::this_thread::get_id();
  bool elsewhere = false;
  memory.commit(
      0, 0, kBytes, [&] { elsewhere = elsewhere || std::this_thread::get_id() != caller; }, 3);
  EXPECT_FALSE(elsewhere) << "after_piece is the caller's";
  EXPECT_GE(in_large_pages(), kBytes - (std::size_t{2} << 20)) << "the heap may begin within a large page";
  for (std::size_t at = 0; at < kBytes; at += 4096) ASSERT_EQ(memory.heap(0)[at], std::byte{0});
}

TEST(NodeMemory, LaysNoLargePagesThatAllRanksTogetherHaveNoRoomFor) {
  constexpr int kRanks = 500;
  constexpr std::size_t kLarge = std::size_t{2} << 20;
  // A rank's share is half of what is free, divided by the ranks of the node.
  const std::size_t share = machine::available_memory() / (2 * kRanks) / kLarge * kLarge;
  NodeMemory memory = NodeMemory::create_memfd(layout_of(kRanks, 4 * share + 4 * kLarge));
  const std::uint64_t before = committed_bytes(memory);
  memory.commit(1, 0, 2 * share + 4 * kLarge);
  EXPECT_EQ(committed_bytes(memory), before) << "pages come as they are touched";
  memory.commit(1, 2 * share + 4 * kLarge, share / 2);
  if (!gives_large_pages() || share < 8 * kLarge) GTEST_SKIP() << "this system gives no large pages, or has little memory";
  EXPECT_GE(committed_bytes(memory), before + share / 2 - 2 * kLarge) << "less than a share is taken";
}

TEST(NodeMemory, OfAPosixObjectThatDoesNotFitSaysSo) {
  // No /dev/shm holds this much beside what it is bounded by: the reservation is sparse, its use is not.
  NodeMemory memory = NodeMemory::create_posix(layout_of(2, 64ULL << 30));
  const auto space = std::filesystem::space("/dev/shm");
  if (space.available > (60ULL << 30))
    GTEST_SKIP() << "/dev/shm has " << space.available << " bytes free: it can't be filled here";
  try {
    memory.commit(0, 0, 64ULL << 30);
    ADD_FAILURE() << "64 GiB were found";
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), Cause::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("/dev/shm"), std::string::npos) << error.what();
  }
}

TEST(NodeMemory, RefusesImpossibleLayouts) {
  expect_error(Cause::refused, [] { NodeMemory::create_memfd(layout_of(0)); });
  expect_error(Cause::refused, [] { NodeMemory::create_memfd(layout_of(kMaxLocalRanks + 1)); });
  expect_error(Cause::refused, [] { NodeMemory::create_memfd(layout_of(2, 0)); });
  expect_error(Cause::refused, [] { NodeMemory::create_memfd(layout_of(2, (16ULL << 20) + 1)); });
  expect_error(Cause::refused, [] { NodeMemory::create_memfd(layout_of(2, 1ULL << 62)); });
  NodeLayout layout = layout_of(4);
  layout.world_size = 3;
  expect_error(Cause::refused, [&] { NodeMemory::create_memfd(layout); });
}

TEST(NodeMemory, AttachChecksWhatItIsGiven) {
  auto memfd = [](const std::string& content) {
    posix::UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
    EXPECT_EQ(::write(fd.get(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
    return fd;
  };
  expect_error(Cause::corrupt, [&] { NodeMemory::attach(memfd("")); });
  expect_error(Cause::corrupt, [&] { NodeMemory::attach(memfd("short")); });
  expect_error(Cause::corrupt, [&] { NodeMemory::attach(memfd(std::string(10'000, 'x'))); });
  EXPECT_THROW(NodeMemory::attach(posix::UniqueFd(::open("/dev/null", O_RDWR))), Error);
  EXPECT_THROW(NodeMemory::attach(posix::UniqueFd()), Error);
  // A true object, but cut short: touching its end would be a SIGBUS.
  const NodeMemory memory = NodeMemory::create_memfd(layout_of(2));
  ASSERT_EQ(::ftruncate(memory.descriptor(), 1 << 20), 0);
  expect_error(Cause::corrupt, [&] { NodeMemory::attach(duplicate(memory)); });
}

TEST(NodeMemory, AttachMakesTheDescriptorCloseOnExec) {
  const NodeMemory maker = NodeMemory::create_memfd(layout_of(1));
  const NodeMemory memory = NodeMemory::attach(duplicate(maker));
  EXPECT_NE(::fcntl(memory.descriptor(), F_GETFD) & FD_CLOEXEC, 0);
}

}  // namespace
}  // namespace tsprun::detail::shm::node_memory_test
