// The shared memory of a shm lane: one producer, one consumer, no lock and no compare-and-swap, so a rank that dies holds nothing
// that others need.
//
//       0 ┌──────────────────────────┐
//         │ places: 16 x 192 B       │  written by the sender; message t has place t mod 16: its slot of 64 B, and 128 B for its
//         │                          │  payload if that is too large for the slot
//    3072 ├──────────────────────────┤
//         │ consumed                 │  written by the receiver: all messages up to this number are finished; the sender may
//         │                          │  reuse their places, ring space and heap memory. These are the lane's credits
//    4096 ├──────────────────────────┤
//         │ ring: 32 KiB             │  written by the sender: payloads that are copied, but too large for their places
//   36864 └──────────────────────────┘
//
// Places are few, so that the lanes of all ranks that share a core stay in its caches: 16 instead of 64 make an all_gather of
// 1 KiB among 8 ranks on 2 cores a third faster (bench/compare_mpi.py). For the same reason small payloads lie beside their slots
// rather than in the ring, whose whole length is written before any of it is used again: an all_to_all of 1 KiB among these ranks
// is 1.2 to 1.5 times as fast.
//
// A slot:
//       0 ┌─────────┬─────────┬───────────┬──────────┬─────┐
//         │ flag    │ bytes   │ signature │ sequence │ tag │   flag: the message's number, stored last (seq_cst: the doorbell's
//      32 ├─────────┼─────────┴───────────┴──────────┴─────┤   protocol needs it); the receiver's acquire load of it makes
//         │ kind    │ payload of up to 24 bytes,           │   everything else visible
//         │         │ or where the payload lies            │
//      64 └─────────┴──────────────────────────────────────┘
#pragma once

#include "transport/shm/node_memory.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tsprun::detail::shm {

/// Messages of a lane in flight.
inline constexpr std::uint64_t kSlots = 16;
/// Largest payload that lies in the slot itself.
inline constexpr std::size_t kInlineBytes = 24;
/// Largest payload that lies beside its slot.
inline constexpr std::size_t kSmallBytes = 128;
inline constexpr std::size_t kRingBytes = 32768;
inline constexpr std::size_t kEagerBytes = 8192;  ///< largest payload that goes through the ring

/// Place of a message's payload.
enum class SlotKind : std::uint64_t {
  in_slot = 1,  ///< the payload lies in the slot
  beside_slot,  ///< the payload lies in the same place
  in_ring,      ///< `where` is an offset in the ring
  in_heap       ///< `where` is an offset in the sender's heap
};

/// One message: one cache line, drawn above.
struct alignas(64) Slot {
  std::atomic<std::uint64_t> flag;
  std::uint64_t bytes;
  std::uint64_t signature;
  std::uint32_t sequence;
  std::uint32_t tag;
  SlotKind kind;
  union {
    std::uint64_t where;
    std::byte payload[kInlineBytes];
  };
};
static_assert(sizeof(Slot) == 64);

/// One message's place, drawn above.
struct Place {
  Slot slot;
  std::byte payload[kSmallBytes];
};
static_assert(sizeof(Place) == 192);

/// One lane, drawn above.
struct LaneMemory {
  Place places[kSlots];
  alignas(128) std::atomic<std::uint64_t> consumed;
  alignas(kPage) std::byte ring[kRingBytes];
};
static_assert(sizeof(LaneMemory) == kLaneSize);
static_assert(offsetof(LaneMemory, consumed) == 3072 && offsetof(LaneMemory, ring) == 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace tsprun::detail::shm
