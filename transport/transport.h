// Interface of lanes: moves bytes between connected ranks. Collectives and decorators (verify/, fault/) use it alone; endpoint.h
// adds what connects two ends.
//
// A lane (message.h) carries two kinds of transfer:
//
//   message   send() at one end, receive() at the other: the payload ends in the receiver's buffer. Small payloads are taken at
//             once, on the lane's credits. Large ones wait at the sender until the receiver has posted its buffer: over verbs the
//             receiver then writes a grant with address and keys, and the sender writes straight into the buffer; over tcp it
//             sends a grant frame; over shm it copies straight out of the sender's heap.
//   view      send() at one end, view() at the other: the receiver borrows the payload in place until it releases it. Works only
//             where the sender's memory is load/store-addressable. Call can_view() first; where it returns false, use receive().
//
// Rules
// · No call blocks. Posting calls return a ticket at once, or kNotNow if the lane has no credit at present.
// · Messages of one lane keep their order; there is no order between lanes.
// · Transports are not thread-safe: the caller serialises all calls to the transports of a rank.
// · Whether a message is small or large depends on its byte count alone, which both ends know, so a receiver can grant a large
//   message before it has heard of it.
// · A broken lane still hands out tickets: testing them returns `disconnected`, and found() gives the reason. A broken lane
//   never makes progress() throw.
// · Every length and offset that comes from a peer is checked before use.
#pragma once

#include "transport/message.h"
#include "tsprun/error.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail {

/// Time for which a send needs its payload.
enum class Delivery : std::uint8_t {
  copy_if_small,  ///< a small payload is copied at once: its ticket is done when send() returns
  by_reference    ///< for payloads that several peers view: where views exist the sender doesn't copy the payload (unless it fits
                  ///< the message's header), and the ticket is done when the peer has released it
};

/// The value of arm() that asks for no wake-up by time.
inline constexpr std::uint64_t kNoDeadline = ~std::uint64_t{0};

/// Lanes between this rank and its peers. Peers are numbered by the implementation. For all posting calls see the rules above.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  // --- sending ------------------------------------------------------------------------------------------------------------
  /// Posts a message. The payload must stay unchanged until the ticket is done. Returns kNotNow without credit. Throws
  /// Error(refused) if the payload is larger than plain_limit() and isn't registered, Error(out_of_memory) if a lane's first
  /// message needs memory that can't be had.
  virtual Ticket send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload,
                      Delivery delivery = Delivery::copy_if_small) = 0;
  /// Largest payload, in bytes, that can be sent from memory that isn't registered (Endpoint::register_memory()).
  virtual std::size_t plain_limit() const = 0;
  /// Returns true if payloads of any size can be sent from `memory` (tcp: any memory; shm, verbs: registered memory).
  virtual bool can_send_from(std::span<const std::byte> memory) const = 0;
  /// Returns done once the payload's memory may be reused: the transport has copied or written it, or the peer has taken it.
  virtual Outcome test_send(LaneId lane, Ticket ticket) = 0;

  // --- receiving ----------------------------------------------------------------------------------------------------------
  /// Receives the lane's next unmatched message into `into`, whose size is the size expected. Returns kNotNow if too many
  /// receives are posted. Throws Error(refused) if a message of that size can't be received into that memory, see
  /// can_receive_into(), and Error(out_of_memory) as send().
  virtual Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) = 0;
  /// Returns true if receive() can write messages of any size into `memory` (shm, tcp: any memory; verbs: registered memory).
  virtual bool can_receive_into(std::span<const std::byte> memory) const = 0;
  /// Borrows the lane's next unmatched message, of exactly `bytes`. Precondition: can_view(lane.peer); other transports throw
  /// Error(refused). Returns kNotNow if too many receives are posted.
  virtual Ticket view(LaneId lane, const Envelope& /*envelope*/, std::size_t /*bytes*/) { no_view(lane); }
  /// Returns done once the message has arrived and, for receive(), lies in its buffer. A mismatch is found before any byte
  /// reaches the buffer; found() then tells what came instead.
  virtual Outcome test_receive(LaneId lane, Ticket ticket) = 0;
  /// Returns true if payloads of this peer can be borrowed with view().
  virtual bool can_view(int /*peer*/) const { return false; }
  /// Returns `bytes` of a viewed message from `offset` on and counts them as received. Precondition: the ticket is done and not
  /// released; the range lies within the message. The span is valid until release().
  virtual std::span<const std::byte> access(LaneId lane, Ticket /*ticket*/, std::size_t /*offset*/, std::size_t /*bytes*/) {
    no_view(lane);
  }
  /// Ends a view: the sender may reuse the memory.
  virtual void release(LaneId lane, Ticket /*ticket*/) { no_view(lane); }
  /// Returns what was found on the incoming lane instead of the expected message, or why the lane is broken. Call it after
  /// mismatch, corrupt or disconnected.
  virtual Found found(LaneId lane) const = 0;
  /// Returns true if this transport finds out that a payload was damaged on its way before it hands it out.
  virtual bool checks_payloads() const { return false; }

  // --- progress and sleep -------------------------------------------------------------------------------------------------
  /// Moves what can be moved without waiting. Returns true if anything moved, which counts as a sign of life. Over shm there is
  /// nothing to do: peers act on the memory themselves.
  virtual bool progress() { return false; }
  /// Asks to be woken, by doorbell or descriptor, by anything that arrives from now on. The caller must look once more before
  /// it sleeps. Returns the time (posix::now_ns) at which progress() must run even if nothing arrives; kNoDeadline: never.
  virtual std::uint64_t arm() { return kNoDeadline; }
  /// Withdraws arm(); call it after waking.
  virtual void disarm() {}
  /// Returns a descriptor that becomes readable when an armed transport has news; -1 if only the rank's doorbell is rung.
  virtual int descriptor() const { return -1; }

 private:
  [[noreturn]] static void no_view(LaneId lane) {
    throw Error(Cause::refused, "a peer's memory can't be viewed; ask can_view()", lane.peer);
  }
};

}  // namespace tsprun::detail
