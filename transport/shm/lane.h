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
//         │ flag    │ bytes   │ signature │ sequence │ tag │   flag: the message's number, stored last; the receiver's load of it
//      32 ├─────────┼─────────┴───────────┴──────────┴─────┤   makes everything else visible. Both are seq_cst, because the
//         │ kind    │ payload of up to 24 bytes,           │   doorbell's protocol needs that (on x86, a load costs no more)
//         │         │ or where the payload lies            │
//      64 └─────────┴──────────────────────────────────────┘
#pragma once

#include "transport/atomics.h"
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

/// The fields of a slot, beside the payload.
template <class Atomics>
struct BasicSlotHead {
  typename Atomics::template Atomic<std::uint64_t> flag;
  typename Atomics::template Plain<std::uint64_t> bytes;
  typename Atomics::template Plain<std::uint64_t> signature;
  typename Atomics::template Plain<std::uint32_t> sequence;
  typename Atomics::template Plain<std::uint32_t> tag;
  typename Atomics::template Plain<SlotKind> kind;

  /// Shows the message, with everything that was written before. Sender only; ring the receiver's bell afterwards.
  void publish(std::uint64_t ticket) { flag.store(ticket, std::memory_order_seq_cst); }
  /// Returns the number of the last message that was shown here. Receiver only.
  std::uint64_t shown() const { return flag.load(std::memory_order_seq_cst); }
};

/// One message: one cache line, drawn above.
struct alignas(64) Slot : BasicSlotHead<SystemAtomics> {
  union {
    std::uint64_t where;
    std::byte payload[kInlineBytes];
  };
};
static_assert(sizeof(Slot) == 64);

/// The lane's credits: how many messages the receiver has finished.
template <class Atomics>
struct BasicCredits {
  typename Atomics::template Atomic<std::uint64_t> consumed;

  /// Gives the places of all messages up to this one back. Receiver only; ring the sender's bell afterwards.
  void give_back(std::uint64_t ticket) { consumed.store(ticket, std::memory_order_seq_cst); }
  /// Returns the last message whose place was given back. Sender only.
  std::uint64_t given_back() const { return consumed.load(std::memory_order_seq_cst); }
};

/// One message's place, drawn above.
struct Place {
  Slot slot;
  std::byte payload[kSmallBytes];
};
static_assert(sizeof(Place) == 192);
static_assert(sizeof(Place) >= kLongestLine,
              "no two slots share a line: the sender writes one while the receiver reads the other");

/// One lane, drawn above.
struct LaneMemory {
  Place places[kSlots];
  alignas(128) BasicCredits<SystemAtomics> credits;
  alignas(kPage) std::byte ring[kRingBytes];
};
static_assert(sizeof(LaneMemory) == kLaneSize);
static_assert(sizeof(LaneMemory::places) == 3072);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace tsprun::detail::shm
