// Creates, maps and checks the node's memory object, and allocates the pages of heaps. POSIX objects and mappings are
// Boost.Interprocess'; memfds and holes are Linux'.
#include "transport/shm/node_memory.h"

#include "transport/cause.h"
#include "transport/machine.h"

#include <boost/interprocess/mapped_region.hpp>
#include <boost/interprocess/shared_memory_object.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <random>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

namespace tsprun::detail::shm {

namespace interprocess = boost::interprocess;

namespace {

/// Returns whether this system makes large pages of a memory object's small ones, as far as is known.
std::atomic<bool>& large_pages_offered() {
  static std::atomic<bool> offered{true};
  return offered;
}

constexpr std::uint64_t kNodeMagic = 0x747370'6e6f6465;  // "tspnode"
constexpr std::uint32_t kVersion = 11;
constexpr std::uint32_t kMostRanks = 65536;
constexpr std::uint64_t kLargestHeap = 256ULL << 30;
constexpr std::uint64_t kSmallestHeap = 1ULL << 20;

/// The first page. Written once, by the process that makes the object, before any other maps it.
struct Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t must_allocate;
  std::uint64_t total_bytes;
  NodeLayout layout;
};
static_assert(sizeof(Header) <= kPage - kJobBytes && std::is_trivially_copyable_v<Header>);

constexpr std::size_t kLargePage = std::size_t{2} << 20;
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // since Linux 6.1
#endif

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

/// Calls posix_fallocate(3) until no signal interrupts it. Returns an errno value.
int allocate(int fd, std::size_t offset, std::size_t bytes) {
  int result = 0;
  do {
    result = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result == EINTR);
  return result;
}

Error full_shared_memory(std::size_t bytes, const std::string& what, int errno_value) {
  const machine::Space space = machine::shared_memory_file_system();
  return Error(
      Cause::out_of_memory,
      fmt::format(
          "/dev/shm is too small for {}: {} KiB more are needed, {} KiB of {} KiB are free ({}). Enlarge /dev/shm, or start "
          "the ranks with `tsprun run`, which doesn't use it",
          what, bytes / 1024, space.free / 1024, space.total / 1024, std::strerror(errno_value)));
}

void check(const NodeLayout& layout) {
  if (layout.local_ranks < 1 || layout.local_ranks > kMaxLocalRanks) {
    throw Error(Cause::refused, fmt::format("{} ranks on one node: 1 to {} work", layout.local_ranks, kMaxLocalRanks));
  }
  if (layout.heap_bytes < kSmallestHeap || layout.heap_bytes > kLargestHeap || layout.heap_bytes % kPage != 0) {
    throw Error(Cause::refused,
                fmt::format("a heap of {} bytes: {} to {} in whole pages work", layout.heap_bytes, kSmallestHeap, kLargestHeap));
  }
  if (layout.world_size < layout.local_ranks || layout.world_size > kMostRanks) {
    throw Error(Cause::refused,
                fmt::format("{} ranks on one node don't fit a world of {}", layout.local_ranks, layout.world_size));
  }
}

/// The object's descriptor as the "memory mappable" that Boost maps.
struct Mappable {
  int descriptor;
  interprocess::mapping_handle_t get_mapping_handle() const { return {descriptor, false}; }
  interprocess::mode_t get_mode() const { return interprocess::read_write; }
};

/// Reserves address space at a multiple of the large page. Returns null if there is none.
std::byte* reserve(std::size_t bytes) {
  void* const room = ::mmap(nullptr, bytes + kLargePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(room);
  const std::size_t before = (kLargePage - reinterpret_cast<std::uintptr_t>(begin) % kLargePage) % kLargePage;
  if (before > 0) ::munmap(begin, before);
  ::munmap(begin + before + bytes, kLargePage - before);
  return begin + before;
}

/// Maps the whole object without reserving swap; if there is address space for that, where large pages can lie under it.
std::unique_ptr<interprocess::mapped_region> map(int descriptor, std::size_t bytes) {
  std::byte* const place = reserve(bytes);
  const int options = MAP_NORESERVE | (place == nullptr ? 0 : MAP_FIXED);  // MAP_FIXED replaces the reservation
  try {
    return std::make_unique<interprocess::mapped_region>(Mappable{descriptor}, interprocess::read_write, 0, bytes, place,
                                                         options);
  } catch (const interprocess::interprocess_exception& failure) {
    if (place != nullptr) ::munmap(place, bytes);
    throw system_error(Cause::out_of_memory, fmt::format("mapping {} bytes of node memory (is `ulimit -v` set?)", bytes),
                       failure.get_native_error());
  }
}

std::uint64_t random_id() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

void write_header(int fd, const NodeLayout& layout, bool must_allocate) {
  Header header{};
  header.magic = kNodeMagic;
  header.version = kVersion;
  header.must_allocate = must_allocate ? 1 : 0;
  header.total_bytes = layout.total_bytes();
  header.layout = layout;
  if (::pwrite(fd, &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) {
    throw system_error(Cause::out_of_memory, "writing the header of node memory", errno);
  }
}

}  // namespace

std::size_t NodeLayout::doorbells_offset() const { return pages_offset() + (std::size_t{1} + world_size) * kPage; }

std::size_t NodeLayout::lanes_offset() const {
  return round_up(doorbells_offset() + std::size_t{local_ranks} * sizeof(Doorbell), kPage);
}

std::size_t NodeLayout::heaps_offset() const {
  return lanes_offset() + std::size_t{local_ranks} * local_ranks * kQueues * kLaneSize;
}

std::size_t NodeLayout::total_bytes() const { return heaps_offset() + std::size_t{local_ranks} * heap_bytes; }

std::uint64_t default_heap_bytes() {
  constexpr std::uint64_t kMost = 64ULL << 30;
  return std::clamp(std::bit_ceil(machine::total_memory()), kSmallestHeap, kMost);
}

NodeMemory NodeMemory::create_memfd(NodeLayout layout) {
  check(layout);
  posix::UniqueFd fd(::memfd_create("tsprun", MFD_CLOEXEC));
  if (!fd) throw system_error(Cause::refused, "memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(layout.total_bytes())) != 0) {
    throw system_error(Cause::out_of_memory, fmt::format("reserving {} bytes of node memory", layout.total_bytes()), errno);
  }
  write_header(fd.get(), layout, false);
  return NodeMemory(layout, std::move(fd), false);
}

NodeMemory NodeMemory::create_posix(NodeLayout layout) {
  check(layout);
  const std::string name = fmt::format("tsp-{}-{:016x}", ::getpid(), random_id());
  posix::UniqueFd fd;
  try {
    const interprocess::shared_memory_object object(interprocess::create_only, name.c_str(), interprocess::read_write,
                                                    interprocess::permissions(0600));
    interprocess::shared_memory_object::remove(name.c_str());
    fd = posix::UniqueFd(::fcntl(object.get_mapping_handle().handle, F_DUPFD_CLOEXEC, 0));
    if (!fd) throw system_error(Cause::refused, fmt::format("the descriptor of /dev/shm/{}", name), errno);
  } catch (const interprocess::interprocess_exception& failure) {
    throw system_error(Cause::refused, fmt::format("shm_open /{} (is /dev/shm mounted?)", name), failure.get_native_error());
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(layout.total_bytes())) != 0) {
    throw system_error(Cause::out_of_memory, fmt::format("reserving {} bytes in /dev/shm", layout.total_bytes()), errno);
  }
  // Everything before the heaps is used without a commit(), so it is allocated now.
  const std::size_t bytes = layout.heaps_offset();
  if (const int result = allocate(fd.get(), 0, bytes); result != 0) {
    throw full_shared_memory(bytes, fmt::format("the lanes of {} rank{}", layout.local_ranks, layout.local_ranks == 1 ? "" : "s"),
                             result);
  }
  write_header(fd.get(), layout, true);
  return NodeMemory(layout, std::move(fd), true);
}

NodeMemory NodeMemory::attach(posix::UniqueFd descriptor) {
  descriptor.set_close_on_exec(true);
  Header header{};
  if (::pread(descriptor.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header)) {
    throw system_error(Cause::corrupt, fmt::format("reading the header of node memory from descriptor {}", descriptor.get()),
                       errno);
  }
  if (header.magic != kNodeMagic) throw Error(Cause::corrupt, "node memory: the descriptor leads to something else");
  if (header.version != kVersion) {
    throw Error(Cause::refused, fmt::format("node memory has version {}, this program speaks {}: build both from the same tsprun",
                                            header.version, kVersion));
  }
  check(header.layout);
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) throw system_error(Cause::corrupt, "fstat of node memory", errno);
  if (header.total_bytes != header.layout.total_bytes() || static_cast<std::uint64_t>(status.st_size) != header.total_bytes) {
    throw Error(Cause::corrupt, fmt::format("node memory has {} bytes, its header says {}", status.st_size, header.total_bytes));
  }
  return NodeMemory(header.layout, std::move(descriptor), header.must_allocate != 0);
}

NodeMemory::NodeMemory(NodeLayout layout, posix::UniqueFd descriptor, bool must_allocate)
    : layout_(layout),
      descriptor_(std::move(descriptor)),
      mapping_(map(descriptor_.get(), layout_.total_bytes())),
      base_(static_cast<std::byte*>(mapping_->get_address())),
      doorbells_(reinterpret_cast<Doorbell*>(base_ + layout_.doorbells_offset())),
      must_allocate_(must_allocate) {
  ::madvise(base_, mapping_->get_size(), MADV_DONTDUMP);
}

NodeMemory::NodeMemory(NodeMemory&& other) noexcept = default;
NodeMemory& NodeMemory::operator=(NodeMemory&& other) noexcept = default;
NodeMemory::~NodeMemory() = default;

std::span<std::byte> NodeMemory::page(int index) const {
  return {base_ + layout_.pages_offset() + static_cast<std::size_t>(index) * kPage, kPage};
}

std::byte* NodeMemory::lane(int receiver, int sender, Stream stream) const {
  const std::size_t pair = static_cast<std::size_t>(receiver) * layout_.local_ranks + static_cast<std::size_t>(sender);
  return base_ + layout_.lanes_offset() + (pair * kQueues + static_cast<std::size_t>(stream)) * kLaneSize;
}

std::size_t NodeMemory::unused_lanes(int receiver, int sender, Stream stream) const {
  const off_t at = lane(receiver, sender, stream) - base_;
  const off_t data = ::lseek(descriptor_.get(), at, SEEK_DATA);
  if (data < 0) return std::numeric_limits<std::size_t>::max();  // nothing behind it was
  return (static_cast<std::size_t>(data - at) + kLaneSize - 1) / kLaneSize;
}

std::span<std::byte> NodeMemory::heap(int local_rank) const {
  return {base_ + layout_.heaps_offset() + static_cast<std::size_t>(local_rank) * layout_.heap_bytes, layout_.heap_bytes};
}

void NodeMemory::hang_bells() {
  for (std::uint32_t i = 0; i < layout_.local_ranks; ++i) {
    bells_.emplace_back(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!bells_.back()) throw system_error(Cause::refused, "an eventfd for every rank", errno);
    doorbells_[i].bell = static_cast<std::uint32_t>(bells_.back().get()) + 1;
  }
}

void NodeMemory::claim_bells() const {
  for (std::uint32_t i = 0; i < layout_.local_ranks; ++i) {
    const int bell = doorbells_[i].bell_descriptor();
    if (bell >= 0 && ::fcntl(bell, F_SETFD, FD_CLOEXEC) != 0) {
      throw system_error(Cause::refused, fmt::format("descriptor {}, the bell of local rank {}, wasn't inherited", bell, i),
                         errno);
    }
  }
}

std::vector<int> NodeMemory::inherited() const {
  std::vector<int> all{descriptor_.get()};
  for (std::uint32_t i = 0; i < layout_.local_ranks; ++i) {
    if (const int bell = doorbells_[i].bell_descriptor(); bell >= 0) all.push_back(bell);
  }
  return all;
}

/// Lays large pages under bytes [begin, end) of the object, both multiples of their size; where it can't, small ones will do.
void NodeMemory::take_large_pages(std::size_t begin, std::size_t end, const std::function<void()>& after_piece,
                                  std::size_t threads) const {
  if (begin >= end || !large_pages_offered().load(std::memory_order_relaxed)) return;
  // Where memory is short, pages come as they are touched, and a POSIX object is refused before it has taken what is left. The
  // node's other ranks take theirs at about the same time.
  std::uint64_t free = machine::available_memory();
  if (must_allocate_) free = std::min(free, machine::shared_memory_file_system().free);
  if (end - begin > free / (2 * std::uint64_t{layout_.local_ranks})) return;
  constexpr std::size_t kPiece = 32 * kLargePage;
  std::atomic<std::size_t> next = begin;
  const auto take_pieces = [&](const std::function<void()>& after) {
    for (std::size_t at = 0; (at = next.fetch_add(kPiece)) < end;) {
      if (!take_large_pages(at, std::min(at + kPiece, end))) next = end;
      else if (after) after();
    }
  };
  std::vector<std::jthread> helpers;  // joined by their destructors
  const std::size_t pieces = (end - begin + kPiece - 1) / kPiece;
  for (std::size_t i = 1; i < std::min(threads, pieces); ++i) {
    try {
      helpers.emplace_back([&] { take_pieces({}); });
    } catch (const std::system_error&) {
      break;  // no more threads: those that are there do it
    }
  }
  take_pieces(after_piece);
}

/// Does so for one piece. Returns whether others are worth a try. MADV_COLLAPSE makes one page of many, so the first of them is
/// allocated before: holes alone are refused (madvise(2)). It is mapped, too: Linux 6.1 makes the large page, then finds no page
/// table for it, and does no more.
bool NodeMemory::take_large_pages(std::size_t begin, std::size_t end) const {
  for (std::size_t at = begin; at < end; at += kLargePage) {
    if (::madvise(base_ + at, kPage, MADV_POPULATE_READ) != 0) return false;
  }
  // Other errors may pass: no large page is free (ENOMEM), a limit is reached (EBUSY), a page is in use (EAGAIN).
  if (::madvise(base_ + begin, end - begin, MADV_COLLAPSE) == 0 || errno != EINVAL) return true;
  large_pages_offered().store(false, std::memory_order_relaxed);
  return false;
}

void NodeMemory::commit(int local_rank, std::size_t offset, std::size_t bytes, const std::function<void()>& after_piece,
                        std::size_t threads) {
  if (bytes == 0) return;
  const std::size_t start = layout_.heaps_offset() + static_cast<std::size_t>(local_rank) * layout_.heap_bytes + offset;
  take_large_pages(round_up(start, kLargePage), (start + bytes) / kLargePage * kLargePage, after_piece, threads);
  if (!must_allocate_) return;
  if (const int result = allocate(descriptor_.get(), start, bytes); result != 0) {
    throw full_shared_memory(bytes, fmt::format("the heap of local rank {}", local_rank), result);
  }
}

bool NodeMemory::release(int local_rank, std::size_t offset, std::size_t bytes) {
  const std::size_t start = layout_.heaps_offset() + static_cast<std::size_t>(local_rank) * layout_.heap_bytes + offset;
  return ::fallocate(descriptor_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(start),
                     static_cast<off_t>(bytes)) == 0;
}

}  // namespace tsprun::detail::shm
