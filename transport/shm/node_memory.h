// The memory that the ranks of one node share: one sparse object, which every rank maps whole.
//
//   ┌──────────┬───────────────┬───────────────────┬──────────────────────────────┬───────────────────────────────┐
//   │ header   │ pages         │ doorbells         │ lanes                        │ heaps                         │
//   │ 4 KiB    │ (1+w) × 4 KiB │ n × 128 B         │ n × n × kQueues × kLaneSize  │ n × heap_bytes                │
//   └──────────┴───────────────┴───────────────────┴──────────────────────────────┴───────────────────────────────┘
//
// n is the number of ranks on this node, w that of the world. The header is written once, before any rank maps the object. Page 0
// belongs to the node, page 1+r to rank r of the world; core's flight board defines what pages hold (pages of ranks on other
// nodes are copies that the launcher updates). Only memory that has been touched is allocated.
//
// Under tsprun the object is a memfd: it has no name that could be left behind, and /dev/shm doesn't bound its size. Ranks that
// tsprun didn't start share a POSIX object, which is unlinked at once, and whose memory is allocated before it is used, so that a
// full /dev/shm is an error instead of a SIGBUS.
//
// The header's second half belongs to the job (bootstrap/job_description.h), which has a secret there. Only the job's processes
// map this memory, and core dumps leave it out: a dump would write its holes as gigabytes of zeros, and the secret with them.
#pragma once

#include "transport/doorbell.h"
#include "transport/message.h"
#include "transport/posix.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace boost::interprocess {
class mapped_region;
}

namespace tsprun::detail::shm {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kLaneSize = 36864;  ///< see lane.h
inline constexpr int kMaxLocalRanks = 1024;

/// Bytes of the first page that belong to the job: see NodeMemory::job_bytes().
inline constexpr std::size_t kJobBytes = 2048;

/// Sizes of a node's memory.
struct NodeLayout {
  std::uint32_t local_ranks = 1;
  std::uint64_t heap_bytes = 0;  ///< address space reserved for each rank's heap, a multiple of the page
  std::uint32_t world_size = 1;

  /// Offsets and size of the parts drawn above, in bytes.
  std::size_t pages_offset() const { return kPage; }
  std::size_t doorbells_offset() const;
  std::size_t lanes_offset() const;
  std::size_t heaps_offset() const;
  std::size_t total_bytes() const;
};

/// Returns the default heap reservation, in bytes: the machine's memory rounded up to a power of two, at least 1 MiB and at
/// most 64 GiB.
std::uint64_t default_heap_bytes();

/// A mapping of the node's memory. One process makes it; the others get its descriptor and attach.
class NodeMemory {
 public:
  /// Makes a memfd for ranks that the caller will start. Throws Error(out_of_memory | refused).
  static NodeMemory create_memfd(NodeLayout layout);
  /// Makes a POSIX object and unlinks it at once. Everything before the heaps is allocated now, heaps by commit().
  /// Throws Error(out_of_memory) naming /dev/shm, what was needed and what is free there; Error(refused) for an
  /// impossible layout or without /dev/shm.
  static NodeMemory create_posix(NodeLayout layout);
  /// Maps an object that another process made by one of the functions above. Takes the descriptor and makes it CLOEXEC. The
  /// header is checked: magic, version, and sizes against the object's true size. Throws Error(corrupt | refused).
  static NodeMemory attach(posix::UniqueFd descriptor);
  NodeMemory(NodeMemory&& other) noexcept;
  NodeMemory& operator=(NodeMemory&& other) noexcept;
  ~NodeMemory();

  const NodeLayout& layout() const { return layout_; }
  int descriptor() const { return descriptor_.get(); }
  /// Returns the kJobBytes bytes that belong to the job, zeros at first. Whoever makes the memory may write them before others
  /// map it.
  std::span<std::byte> job_bytes() const { return {base_ + kPage - kJobBytes, kJobBytes}; }
  /// Returns the address at which this process maps the object.
  std::byte* base() const { return base_; }

  /// Returns a page of kPage bytes, zero at first: page 0 is the node's, page 1+r that of rank r of the world.
  std::span<std::byte> page(int index) const;
  Doorbell& doorbell(int local_rank) const { return doorbells_[local_rank]; }
  /// Wakes a rank of this node if it sleeps.
  void ring(int local_rank) const { doorbell(local_rank).ring(); }
  /// Gives every rank an eventfd as its bell (doorbell.h). The process that made the memory calls it before it starts ranks,
  /// which must inherit the descriptors of inherited(). Throws Error(refused).
  void hang_bells();
  /// Makes the inherited bells CLOEXEC, in a rank that was exec'd. Throws Error(refused) if they weren't inherited.
  void claim_bells() const;
  /// Returns the descriptors that a rank must inherit: the memory's own and the bells'.
  std::vector<int> inherited() const;
  /// Returns the memory (lane.h) of the lane from `sender` to `receiver`; both are local ranks.
  std::byte* lane(int receiver, int sender, Stream stream) const;
  /// Returns how many lanes from this one on, in the order in which the receiver's lie, were never used; 0: this one was. May
  /// count lanes behind the receiver's. (To look at a lane that wasn't used would give it memory.)
  std::size_t unused_lanes(int receiver, int sender, Stream stream) const;
  /// Returns the whole address space reserved for a rank's heap.
  std::span<std::byte> heap(int local_rank) const;

  /// Makes [offset, offset+bytes) of this rank's heap usable. Every whole large page (2 MiB) within the range is taken at once if
  /// the system can give it and memory isn't short. (It is cleared and mapped some ten times as fast as 512 small ones, and read
  /// faster: fewer walks of page tables.) The rest is allocated now in a POSIX object, and when it is touched in a memfd. Up to
  /// `threads` threads take large pages side by side: most of the time goes into clearing them. Calls `after_piece`, if there is
  /// one, on the caller's thread after pieces of 64 MiB. Throws Error(out_of_memory) saying how much is needed and free.
  void commit(int local_rank, std::size_t offset, std::size_t bytes, const std::function<void()>& after_piece = {},
              std::size_t threads = 1);
  /// Gives memory of this rank's heap back to the system, for all processes; offset and bytes are whole pages. The contents are
  /// lost; the pages are zero when they are used again (after another commit()). Precondition: no NIC may touch them. Returns
  /// false if the system can't punch holes.
  bool release(int local_rank, std::size_t offset, std::size_t bytes);

 private:
  NodeMemory(NodeLayout layout, posix::UniqueFd descriptor, bool must_allocate);
  void take_large_pages(std::size_t begin, std::size_t end, const std::function<void()>& after_piece, std::size_t threads) const;
  bool take_large_pages(std::size_t begin, std::size_t end) const;

  NodeLayout layout_;
  posix::UniqueFd descriptor_;
  std::unique_ptr<boost::interprocess::mapped_region> mapping_;  ///< a header that its includers needn't pay for
  std::byte* base_ = nullptr;
  Doorbell* doorbells_ = nullptr;
  bool must_allocate_ = false;
  std::vector<posix::UniqueFd> bells_;  ///< owned by the process that made the memory
};

}  // namespace tsprun::detail::shm
