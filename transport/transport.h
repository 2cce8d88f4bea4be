// The one interface of all ways to move bytes between two ranks: shm, verbs, tcp, and decorators around them.
//
// What a lane carries:
//
//   message   send() here, receive() there: the payload ends in the receiver's buffer. Small ones travel at once on the lane's
//             credits; large ones wait at the sender until the receiver has posted its buffer (over verbs: the receiver writes a
//             clear-to-send entry with address and key, the sender answers with one WRITE_WITH_IMM; over shm: the receiver
//             copies straight out of the sender's heap).
//   view      send() here, view() there: where the sender's memory is load/store-addressable the receiver borrows the payload in
//             place, until it releases it. Ask can_view() first: where it says no, use receive().
//   put       one-sided write into the peer's registered memory; its notification is a message of the same lane, matched there
//             by receive_put(). Nothing is put before the receiver has told its RemoteSpan in a message of its own.
//
// Rules
//   · Nothing blocks; every call returns at once with a ticket or kNotNow (no credit at present).
//     Order is strict within a lane, none between lanes.
//     Calls are not safe against each other: whoever drives a rank's transports serialises them.
//   · Whether a message is small or large depends on its byte count alone, which both ends know, so no request to send is needed.
//   · A broken lane still hands out tickets; their test says `disconnected` and found() why. progress() never throws.
//   · Every length and offset that comes from a peer is checked before use.
#pragma once

#include "transport/message.h"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun {

/// Whether a transport can reach a peer, and why or why not, in words that `doctor` and the report print.
struct Reach {
  bool possible;
  std::string why;
};

/// Memory is registered slab by slab, counted from the start of the heap: one key covers one slab.
inline constexpr std::size_t kSlabBytes = std::size_t{64} << 20;

/// Memory that peers may address: what put() needs to know of the other side. 16 bytes on any wire.
struct RemoteSpan {
  std::uint64_t key;     ///< which registration (shm: unused; verbs: the slab's rkey)
  std::uint64_t offset;  ///< shm: offset in the peer's heap; verbs: address in the peer
};
static_assert(sizeof(RemoteSpan) == 16);

/// How a send may treat its payload.
enum class Delivery : std::uint8_t {
  copy_if_small,  ///< small payloads are copied away at once: the ticket is done when send() returns
  by_reference  ///< for payloads that many peers view: not copied by the sender where views exist (but for the few bytes that fit
                ///< a message's header); the ticket is done when the peer has released it
};

/// Payload bytes that crossed lanes, by purpose; behind the purposes what is nobody's payload. Views count what was accessed,
/// when it was accessed.
struct TrafficCounters {
  std::uint64_t sent[kPurposes + 1] = {};
  std::uint64_t received[kPurposes + 1] = {};
};

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;

  // --- reaching peers -----------------------------------------------------------------------------------------------------
  /// What `peer` needs to connect to this rank; opaque to all others. (verbs makes the queue pairs for that peer here.)
  virtual std::vector<std::byte> address(int peer) = 0;
  /// Judges a peer by its address blob.
  virtual Reach can_reach(int peer, std::span<const std::byte> address) const = 0;
  /// Starts to connect. Throws Error if the blob is malformed or the peer can't be reached.
  virtual void connect(int peer, std::span<const std::byte> address) = 0;
  /// True once bytes have provably flowed to the peer.
  virtual bool connected(int peer) = 0;

  // --- memory -------------------------------------------------------------------------------------------------------------
  /// Makes memory addressable for peers (shm: it must lie in this rank's heap; verbs: a slab is registered). Registering what is
  /// registered already costs nothing. Throws Error(out_of_memory) with the limit that stood in the way.
  virtual void register_memory(std::span<std::byte> memory) = 0;
  /// How peers address registered memory. Precondition: it is registered and lies within one slab.
  virtual RemoteSpan remote(std::span<const std::byte> memory) const = 0;
  /// True if `memory` is registered, so that payloads of any size can be sent from it. Plain memory is good for payloads up to
  /// plain_limit() bytes.
  virtual bool is_registered(std::span<const std::byte> memory) const = 0;
  virtual std::size_t plain_limit() const = 0;
  /// True if receive() may write messages of any size into `memory` (shm, tcp: any memory; verbs: what is registered).
  virtual bool can_receive_into(std::span<const std::byte> memory) const = 0;
  /// True if a payload that was damaged on its way is found out before anyone uses it.
  virtual bool checks_payloads() const { return false; }

  // --- lanes --------------------------------------------------------------------------------------------------------------
  /// Posts a message. The payload must stay untouched until the ticket is done. kNotNow: no credit.
  virtual Ticket send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload,
                      Delivery delivery = Delivery::copy_if_small) = 0;
  /// Writes `payload` (registered) to `where` in the peer and notifies it through the lane.
  virtual Ticket put(LaneId lane, const Envelope& envelope, RemoteSpan where, std::span<const std::byte> payload) = 0;
  /// The lane's next unmatched message shall be the notification of a put of exactly where.size() bytes to `where`, which the
  /// peer was told as a RemoteSpan. Tested as any receive.
  virtual Ticket receive_put(LaneId lane, const Envelope& envelope, std::span<const std::byte> where) = 0;
  /// Has the peer taken, or the transport copied away, the message of that ticket?
  virtual Outcome test_send(LaneId lane, Ticket ticket) = 0;

  /// The lane's next unmatched message shall go into `into`, whose size is the size expected. kNotNow: too many posted.
  virtual Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) = 0;
  /// The lane's next unmatched message, of exactly `bytes`, shall be borrowed. Precondition: can_view(lane.peer).
  virtual Ticket view(LaneId lane, const Envelope& envelope, std::size_t bytes) = 0;
  /// Has it arrived (and, for receive, been copied)? A mismatch is found before any byte reaches the buffer.
  virtual Outcome test_receive(LaneId lane, Ticket ticket) = 0;
  virtual bool can_view(int peer) const = 0;
  /// `bytes` of a viewed message from `offset` on; counted as received. Precondition: its ticket is done and not released; the
  /// range lies within the message.
  virtual std::span<const std::byte> access(LaneId lane, Ticket ticket, std::size_t offset, std::size_t bytes) = 0;
  /// Ends a view: the sender may reuse the memory.
  virtual void release(LaneId lane, Ticket ticket) = 0;
  /// What lies in the incoming lane's way, after mismatch, corrupt or disconnected.
  virtual Found found(LaneId lane) const = 0;
  /// For injected faults: a bit of the message that the lane's next receive expects shall be flipped before the transport's own
  /// check of it. False: it has none. Asking again before that receive changes nothing.
  virtual bool damage_next(LaneId) { return false; }

  /// For injected delays: whether a message that has come from this peer is withheld for a while, so that the peer may be gone
  /// and yet be heard.
  virtual bool withholds(int /*peer*/) const { return false; }

  // --- progress and sleep -------------------------------------------------------------------------------------------------
  /// Moves what can be moved; true if anything did, which is a sign of life. In shm peers act on the memory themselves.
  virtual bool progress() = 0;
  /// Asks to be woken (doorbell or descriptor) by anything that arrives from now on. The caller looks once more before it sleeps.
  /// Returns the time (posix::now_ns) at which progress() must run though nothing arrives; kNoDeadline: never.
  virtual std::uint64_t arm() = 0;
  virtual void disarm() = 0;
  /// A descriptor that becomes readable when an armed transport has news; -1 if the rank's doorbell alone does it.
  virtual int descriptor() const = 0;

  /// Drives the end in good order: true once everything sent has reached its peers, whatever this rank does next.
  virtual bool close() = 0;

  virtual const TrafficCounters& counters() const = 0;
};

inline constexpr std::uint64_t kNoDeadline = ~std::uint64_t{0};

}  // namespace tsprun
