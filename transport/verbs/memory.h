// Memory that the NIC may touch: the heap's slabs, registered on first use, and regions of the transport's own.
#pragma once

#include "transport/transport.h"

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tsprun::verbs {

struct Deregister {
  void operator()(ibv_mr* mr) const { ibv_dereg_mr(mr); }
};
using Registration = std::unique_ptr<ibv_mr, Deregister>;

/// Registers memory for local use and, if so, for peers' writes. Throws Error(out_of_memory) that names the limit in the way.
Registration register_bytes(ibv_pd* pd, std::span<std::byte> memory, const char* what);

/// What keeps a rank with so many peers from locking the memory that it needs at least (message buffers, one slab of the heap),
/// and what to raise; empty if nothing does.
std::string locked_memory_shortage(int peers, std::size_t heap_bytes = kSlabBytes);

/// The registered slabs of a rank's heap.
class Slabs {
 public:
  /// `heap` is one stretch of address space, of which only what is registered needs to be committed. As long as only its first
  /// `expected` bytes are used, no more is registered: memory that is registered is locked, used or not.
  Slabs(ibv_pd* pd, std::span<std::byte> heap, std::size_t expected)
      : pd_(pd), heap_(heap), expected_(expected), slabs_((heap.size() + kSlabBytes - 1) / kSlabBytes) {}

  /// Registers all slabs that `memory` touches. Throws Error(refused) outside the heap, Error(out_of_memory).
  void add(std::span<const std::byte> memory);
  bool covers(std::span<const std::byte> memory) const;
  /// A run of registered bytes within one slab.
  struct Piece {
    std::size_t bytes;
    std::uint32_t local_key;
    std::uint32_t remote_key;
  };
  /// The piece that begins at `memory` and ends with it or with the slab. Precondition: covers(memory).
  Piece piece(std::span<const std::byte> memory) const;

 private:
  struct Slab {
    Registration registration;
    Registration first;     // of fewer bytes, of a slab that turned out to be used further: peers may still hold its keys
    std::size_t bytes = 0;  // registered, from the slab's beginning
  };

  bool in_heap(std::span<const std::byte> memory) const;
  /// Calls visit(slab, bytes of it up to the end of what `memory` touches) for every slab; false if a call gave false.
  template <class Visit>
  bool each_slab(std::span<const std::byte> memory, Visit&& visit) const;
  std::size_t slab_of(const std::byte* place) const { return static_cast<std::size_t>(place - heap_.data()) / kSlabBytes; }

  ibv_pd* pd_;
  std::span<std::byte> heap_;
  std::size_t expected_;
  std::vector<Slab> slabs_;
};

/// Anonymous, page-aligned, registered memory.
class Region {
 public:
  Region(ibv_pd* pd, std::size_t bytes);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  std::byte* data() const { return bytes_.data(); }
  std::uint32_t local_key() const { return registration_->lkey; }
  std::uint32_t remote_key() const { return registration_->rkey; }

 private:
  std::span<std::byte> bytes_;
  Registration registration_;
};

}  // namespace tsprun::verbs
