// Memory that the NIC may read and write: the slabs of the rank's heap, registered on first use, and regions of the transport's
// own.
#pragma once

#include "transport/endpoint.h"
#include "transport/posix.h"
#include "transport/verbs/library.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::verbs {

/// Deleter of a Registration.
struct Deregister {
  void operator()(ibv_mr* mr) const { library().dereg_mr(mr); }
};
/// A registered memory region; deregistered by its owner.
using Registration = std::unique_ptr<ibv_mr, Deregister>;

/// Registers memory for local use and for peers' writes. `what` names it in errors. Throws Error(out_of_memory) naming the
/// limit that stood in the way.
Registration register_bytes(ibv_pd* pd, std::span<std::byte> memory, const char* what);

/// Returns why a rank that uses all queues with so many peers can't lock the memory for that (message buffers, queue pairs
/// by the sizes of mlx5, and one slab of the heap or `heap_bytes` if fewer), and which limit to raise; empty if it can.
/// `adapters`: with how many the rank registers its memory. `pairs`: queue pairs for payloads by each of them.
std::string locked_memory_shortage(int peers, std::size_t heap_bytes = kSlabBytes, std::size_t adapters = 1,
                                   std::size_t pairs = 1);

/// The registered slabs of a rank's heap. Registered memory is locked, whether it is used or not.
class Slabs {
 public:
  /// Takes the heap's address space, of which only registered parts need be committed. As long as only its first `expected`
  /// bytes are used, no more than these are registered.
  Slabs(ibv_pd* pd, std::span<std::byte> heap, std::size_t expected)
      : pd_(pd), heap_(heap), expected_(expected), slabs_((heap.size() + kSlabBytes - 1) / kSlabBytes) {}

  /// Registers all slabs that `memory` touches, if they aren't. Throws Error(refused) outside the heap, Error(out_of_memory) as
  /// register_bytes().
  void add(std::span<const std::byte> memory);
  /// Returns `memory` and what of its slabs add(memory) would register besides that isn't registered yet.
  std::span<std::byte> around(std::span<std::byte> memory) const;
  /// Returns true if all of `memory` is registered.
  bool covers(std::span<const std::byte> memory) const;
  /// A run of registered bytes within one slab.
  struct Piece {
    std::size_t bytes;
    std::uint32_t local_key;
    std::uint32_t remote_key;
  };
  /// Returns the piece that begins at `memory` and ends where `memory` or its slab ends. Precondition: covers(memory), not
  /// empty.
  Piece piece(std::span<const std::byte> memory) const;

 private:
  struct Slab {
    Registration registration;
    Registration first;     // an earlier registration, of fewer bytes: peers may still hold its keys
    std::size_t bytes = 0;  // registered bytes, from the slab's start
  };

  bool in_heap(std::span<const std::byte> memory) const;
  /// Returns how many bytes of a slab are registered, from its start, where so many are used.
  std::size_t bytes_for(std::size_t slab, std::size_t used) const;
  /// Calls visit(slab, bytes from the slab's start to the end of `memory` within it) for every slab that `memory` touches,
  /// until a call returns false; then returns false.
  template <class Visit>
  bool each_slab(std::span<const std::byte> memory, Visit&& visit) const;
  std::size_t slab_of(const std::byte* place) const { return static_cast<std::size_t>(place - heap_.data()) / kSlabBytes; }

  ibv_pd* pd_;
  std::span<std::byte> heap_;
  std::size_t expected_;
  std::vector<Slab> slabs_;
};

/// Anonymous, page-aligned, registered memory of the transport's own; not inherited by forked children.
class Region {
 public:
  /// Makes it, registered with one adapter. Throws Error(out_of_memory).
  Region(ibv_pd* pd, std::size_t bytes);
  /// Registers it with one more adapter. Throws Error(out_of_memory).
  void share(ibv_pd* pd);

  std::byte* data() const { return pages_.bytes().data(); }
  std::uint32_t local_key(std::size_t adapter = 0) const { return registrations_[adapter]->lkey; }
  std::uint32_t remote_key(std::size_t adapter = 0) const { return registrations_[adapter]->rkey; }

 private:
  posix::Mapping pages_;
  std::vector<Registration> registrations_;  // end before the pages do
};

}  // namespace tsprun::detail::verbs
