// The memory that the ranks of one node share: one sparse object, mapped whole by every rank.
//
//   ┌──────────┬───────────────┬───────────────────┬──────────────────────────────┬───────────────────────────────┐
//   │ header   │ pages         │ doorbells         │ lanes                        │ heaps                         │
//   │ 4 KiB    │ (1+w) × 4 KiB │ n × 128 B         │ n × n × kStreams × kLaneSize │ n × heap_bytes                │
//   └──────────┴───────────────┴───────────────────┴──────────────────────────────┴───────────────────────────────┘
//
// n ranks share this node's memory, w are in the world. The header is written once, before any rank maps the object. Page 0
// belongs to the node, page 1+r to rank r of the world; what they hold is the business of those who use them (core's flight
// board; pages of ranks on other nodes are copies that the launcher keeps up). Only what is touched costs memory.
//
// Under tsprun the object is a memfd: no name to leak, not bounded by /dev/shm. Ranks that no tsprun started share a POSIX object
// that is unlinked before anyone else opens it, and allocated before it is used, so that a full /dev/shm is an error instead of
// a SIGBUS.
//
// Core dumps leave it out: a dump would write each hole as zeros, gigabytes of them, and the secret with them.
#pragma once

#include "transport/doorbell.h"
#include "transport/message.h"
#include "transport/posix.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tsprun::shm {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kLaneSize = 36864;  ///< see lane.h
inline constexpr int kMaxLocalRanks = 1024;

/// How ranks of different nodes shall talk.
enum class Inter : std::uint32_t {
  automatic,  ///< by verbs where both ends have a usable RDMA device, else by tcp
  verbs,      ///< by verbs, or not at all
  tcp
};

/// What defines a node's memory.
struct NodeLayout {
  std::uint32_t local_ranks = 1;
  std::uint64_t heap_bytes = 0;  ///< address space reserved for each rank's heap, a multiple of the page
  std::uint32_t first_rank = 0;  ///< rank in the world of local rank 0
  std::uint32_t world_size = 1;
  std::uint32_t node = 0;
  std::uint32_t nodes = 1;
  std::uint64_t timeout_ns = 0;  ///< deadline of waits, for all ranks of the node
  std::uint32_t cores = 1;       ///< cores that this node's ranks may use together (affinity, quota)
  std::uint32_t supervised = 0;  ///< 1: a launcher watches the processes and writes their ends to the board
  std::uint32_t share = 1;       ///< 1: this node's ranks talk over this memory; 0: over sockets
  std::uint32_t tls = 0;         ///< 1: connections to the store and of lanes over tcp use TLS
  Inter inter = Inter::automatic;
  char rdma[64] = {};                  ///< what --rdma says; empty: choose
  char store[64] = {};                 ///< "host:port" of the job's key-value store, empty if ranks need none
  std::array<std::byte, 32> secret{};  ///< the job's, if it has a store: this memory is private to its processes
  std::uint64_t id = 0;                ///< random, set by the maker: tells one job's memory from another's

  std::size_t pages_offset() const { return kPage; }
  std::size_t doorbells_offset() const;
  std::size_t lanes_offset() const;
  std::size_t heaps_offset() const;
  std::size_t total_bytes() const;
};

/// Default heap reservation: the machine's memory rounded up to a power of two, at most 64 GiB.
std::uint64_t default_heap_bytes();

class NodeMemory {
 public:
  /// A memfd for the ranks that the caller will start. Throws Error(out_of_memory | refused).
  static NodeMemory create_memfd(NodeLayout layout);
  /// A POSIX object, unlinked at once; what is used of it is allocated first. Throws Error(out_of_memory) naming /dev/shm, what
  /// was needed and what is free there.
  static NodeMemory create_posix(NodeLayout layout);
  /// Maps an object made by one of the above; takes the descriptor and makes it CLOEXEC. The header is checked (magic, version,
  /// sizes against the object's true size). Throws Error(corrupt | refused).
  static NodeMemory attach(posix::UniqueFd descriptor);

  const NodeLayout& layout() const { return layout_; }
  int descriptor() const { return descriptor_.get(); }
  std::byte* base() const { return base_; }

  /// Page 0: the node's; page 1+r: that of rank r of the world. kPage bytes each, zero at first.
  std::span<std::byte> page(int index) const;
  Doorbell& doorbell(int local_rank) const { return doorbells_[local_rank]; }
  /// Wakes a rank that sleeps.
  void ring(int local_rank) const { doorbell(local_rank).ring(); }
  /// Gives every rank an eventfd as its bell (doorbell.h). For the maker, before it starts ranks, which must inherit inherited().
  /// Throws Error(refused).
  void hang_bells();
  /// In a rank that was exec'd: makes the inherited bells CLOEXEC. Throws Error(refused) if they weren't inherited.
  void claim_bells() const;
  /// The descriptors that a rank needs: the memory's own and the bells'.
  std::vector<int> inherited() const;
  /// The lane on which `sender` writes and `receiver` reads.
  std::byte* lane(int receiver, int sender, Stream stream) const;
  /// The whole reservation of a rank's heap.
  std::span<std::byte> heap(int local_rank) const;

  /// Makes [offset, offset+bytes) of this rank's heap usable: allocates it in a POSIX object, does nothing for a memfd.
  /// Throws Error(out_of_memory) with figures.
  void commit(int local_rank, std::size_t offset, std::size_t bytes);
  /// Gives the memory of whole pages of this rank's heap back, for all processes; what they held is lost, and they are zero when
  /// they are used again (after another commit()). Not while a NIC may touch them. False if the system can't.
  bool release(int local_rank, std::size_t offset, std::size_t bytes);

 private:
  NodeMemory(NodeLayout layout, posix::UniqueFd descriptor, bool must_allocate);

  NodeLayout layout_;
  posix::UniqueFd descriptor_;
  posix::Mapping mapping_;
  std::byte* base_ = nullptr;
  Doorbell* doorbells_ = nullptr;
  bool must_allocate_ = false;
  std::vector<posix::UniqueFd> bells_;  ///< the maker's
};

}  // namespace tsprun::shm
