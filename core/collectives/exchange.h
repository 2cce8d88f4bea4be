// The building blocks of all algorithms: a payload to send (Offer), and a message to receive (Message, Arrival). They hide where
// payloads lie and whether a peer's memory can be read in place ("viewed").
//
// A ticket is a position in a lane, so both ends of a lane must post the same messages in the same order: an algorithm sends a
// message, possibly an empty one, wherever the other side expects one.
#pragma once

#include "core/collectives/collective.h"
#include "core/collectives/staging.h"
#include "core/kernels/reduce.h"

#include <boost/container/small_vector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail {

/// A vector with an entry for each peer, which doesn't allocate for groups of common sizes.
template <class T>
using PerPeer = boost::container::small_vector<T, 16>;

/// Number of receivers of the bytes of an Offer.
enum class Readers : std::uint8_t {
  one,     ///< every part goes to one peer only
  several  ///< the same bytes go to several peers
};

/// Owner of the memory of an Offer.
enum class Owner : std::uint8_t {
  caller,    ///< the caller's; it doesn't change until the operation is complete
  sender,    ///< the caller's too, of a message: up to a size it is complete before it is received, as its payload is copied
  changing,  ///< the caller's, but the operation may overwrite it before all peers have read, so they never read it in place
  operation  ///< heap memory of the operation itself
};

/// Memory of which parts are sent to peers. Small messages are copied into the lane at once, somewhat larger payloads into
/// staging memory; large ones are read by the peers: in place if they lie in the heap, or all transports send from any memory,
/// else each part from a copy in the heap, which is given back when its readers have read it. In a blocking collective of ranks
/// of one node, whose callers all wait, a payload in the heap is large from kCopiedBytes on; if they share cores, from
/// kStagedFromHeapBytes on. Each part is waited for as prepared(), then as sent(), to each peer that gets it; last comes
/// drained(), once.
class Offer {
 public:
  /// Makes an offer of nothing, until set().
  explicit Offer(Collective& me) : me_(&me) {}
  /// Makes an offer as set() does, unless this rank is alone.
  Offer(Collective& me, std::span<const std::byte> memory, std::size_t largest, Readers readers, Owner owner = Owner::caller)
      : me_(&me) {
    if (me.peers() > 0) set(memory, largest, readers, owner);
  }
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;

  /// Chooses how to send parts of `memory`. `largest`: size of the largest single message in bytes. Allocates staging memory if
  /// it would be needed on a machine where ranks share cores. Throws Error(out_of_memory).
  void set(std::span<const std::byte> memory, std::size_t largest, Readers readers, Owner owner = Owner::caller);

  /// Returns the condition that the bytes of this range, which are final, are where peers can get them.
  auto prepared(std::size_t offset, std::size_t bytes) {
    return Until{[this, offset, bytes] { return is_prepared() || prepare(offset, bytes); }};
  }
  /// Returns the same condition for all of the memory.
  auto prepared() {
    return Until{[this] { return prepare_all(); }};
  }
  /// Returns the condition that a range has been sent to a member. It is false while the lane has no credit.
  auto sent(int to, std::uint32_t step, std::size_t offset, std::size_t bytes) {
    return Until{[=, this] { return send(to, step, offset, bytes); }};
  }
  /// Returns the condition that all of the memory has been prepared and sent to a member, as one message of step 0.
  auto all_sent_to(int to) {
    return Until{[this, to, prepared = false]() mutable {
      prepared = prepared || prepare_all();
      return prepared && send(to, 0, 0, memory_.size());
    }};
  }
  /// Returns the condition that no peer reads the memory any more. No part is sent after it.
  auto drained() {
    return Until{[this] { return (block_ == nullptr && pending_.empty() && mirrors_.empty()) || drain(); }};
  }

  // Polls of the conditions above. Each returns true once its condition holds; until then it notes for which rank the operation
  // waits.
  bool prepare(std::size_t offset, std::size_t bytes);
  bool prepare_all() { return is_prepared() || prepare_in_pieces(0, memory_.size()); }
  /// Does the same as prepare(), but copies no more than the budget allows in one poll. A range is finished before the next.
  bool prepare_in_pieces(std::size_t offset, std::size_t bytes);
  bool send(int to, std::uint32_t step, std::size_t offset, std::size_t bytes);
  bool drain();
  /// Tells that no part will be sent any more. drained() does the same; an operation with two offers tells it before it prepares
  /// parts of the other.
  void all_sent();

 private:
  /// A copy, in the heap, of a range that was prepared.
  struct Mirror {
    std::size_t offset;
    HeapBlock block;
    int unsent;  // messages that will yet be sent from it
    std::vector<PendingSend> pending;
  };

  bool find_room();
  bool is_read_in_place(Owner owner) const;
  bool goes_from(std::span<const std::byte> memory) const;
  Mirror* mirror(std::size_t offset);
  Mirror* make_mirror(std::size_t offset, std::size_t bytes);
  template <class Sends>
  bool are_read(Sends& sends);
  /// Returns true if peers get the bytes straight from the memory.
  bool is_prepared() const { return protocol_ == Protocol::copied || protocol_ == Protocol::in_place; }

  enum class Protocol : std::uint8_t {
    copied,    ///< copied into the lane by send()
    staged,    ///< copied into a block of staging memory; the operation doesn't wait for its readers
    in_place,  ///< peers read the memory itself
    mirrored   ///< peers read a copy of the range in the heap
  };
  Collective* me_;
  Protocol protocol_ = Protocol::copied;
  Readers readers_ = Readers::one;
  std::span<const std::byte> memory_;
  std::size_t prepared_ = 0;  // bytes of the range that prepare_in_pieces() has begun
  std::vector<Mirror> mirrors_;
  Staging::Block* block_ = nullptr;
  PerPeer<PendingSend> pending_;
};

/// Condition that all of an offer's memory has been sent to a member, in pieces of Collective::message_piece().
class SentInPieces {
 public:
  SentInPieces(Collective& me, Offer& offer, int to, std::size_t bytes) : me_(me), offer_(offer), to_(to), bytes_(bytes) {}
  bool poll();

 private:
  Collective& me_;
  Offer& offer_;
  int to_;
  std::size_t bytes_;
  std::size_t at_ = 0;
  std::uint32_t step_ = 0;
  bool prepared_ = false;  // the piece that begins at at_
};

/// Condition that a member hasn't left the job, before a message to it is sent: to a lane of which nobody reads any more a small
/// one could still be sent. Once it has left the condition is never true, and the wait fails as that of a receive from it does.
struct Present {
  Collective& me;
  int member;
  bool poll() {
    if (!me.has_left(member)) return true;
    me.set_missing(member);
    return false;
  }
};

/// Condition that one message from a peer has arrived. Trivially copyable.
class Message {
 public:
  /// Expects a message of `bytes` from a member. If its sender's memory can be viewed, a message larger than `receive_up_to` (any
  /// message, if `landing` is null) is viewed in place; any other is received into `landing`, which may be null only if
  /// needs_landing() is false. `segment`: see Collective::set_missing().
  Message(Collective& me, int from, std::uint32_t step, std::size_t bytes, std::byte* landing,
          std::size_t receive_up_to = kReceivedBytes, std::uint32_t segment = 0)
      : me_(&me), landing_(landing), bytes_(bytes), receive_up_to_(receive_up_to), step_(step), from_(from), segment_(segment) {}
  /// Expects a message whose receive into `landing` was posted earlier.
  static Message adopt(Collective& me, Ticket ticket, int from, std::byte* landing);

  /// Asks for the message and returns true once it has arrived, else notes its sender as missing. Throws Error(mismatch | corrupt
  /// | disconnected).
  bool poll();
  /// Asks the transport for the message, if that wasn't done before. Returns false if the lane has no credit now; call again.
  bool ask();
  int from() const { return from_; }
  /// Notes the sender as missing.
  void note_missing() const { me_->set_missing(from_, segment_); }
  /// Sets `landing`, before ask().
  void land_at(std::byte* landing) { landing_ = landing; }
  /// Returns true if the message, which has arrived, was received into `place`.
  bool is_at(const std::byte* place) const { return landing_ == place && !viewed_; }
  /// Returns the address of `count` bytes at `offset` of a message that has arrived. Valid until release().
  const std::byte* bytes(std::size_t offset, std::size_t count) const;
  /// Tells the sender that a viewed message was read. To be called once for every message that arrived.
  void release();

  /// Returns true if messages from this member need a landing, whatever their size, because its memory can't be viewed.
  static bool needs_landing(const Collective& me, int from) { return !me.group().member(from).can_view; }

 private:
  bool arrived();

  Collective* me_;
  Ticket ticket_ = kNotNow;
  std::byte* landing_;
  std::size_t bytes_;
  std::size_t receive_up_to_;
  std::uint64_t pending_ns_ = 0;  // when a poll first found it missing; 0: none did, or it isn't timed
  std::uint32_t step_;
  int from_;
  std::uint32_t segment_;
  bool viewed_ = false;
  bool here_ = false;
};

/// A local buffer that is filled by messages, and heap memory as large as it for messages that a transport can't write there,
/// allocated when it is first needed.
class Landing {
 public:
  Landing(Collective& me, std::span<std::byte> whole) : me_(&me), whole_(whole) {}
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;
  Collective& me() const { return *me_; }
  /// Returns the address at which to receive a message for `place`, a part of the buffer: `place` itself, if the transport can
  /// write there. Throws Error(out_of_memory).
  std::byte* of(int from, std::span<std::byte> place);

 private:
  Collective* me_;
  std::span<std::byte> whole_;
  HeapBlock block_;
};

/// Condition that one message from a peer is at its place in a local buffer, to which it is copied piece by piece if it didn't
/// arrive there.
class Arrival {
 public:
  /// Expects a message as long as `place`, a part of the landing's buffer. `segment`: see Collective::set_missing().
  Arrival(Landing& landing, int from, std::uint32_t step, std::span<std::byte> place, std::uint32_t segment = 0)
      : landing_(&landing), message_(landing.me(), from, step, place.size(), nullptr, kReceivedBytes, segment), place_(place) {}
  /// Expects a message whose receive into `place` was posted earlier.
  static Arrival adopt(Landing& landing, Ticket ticket, int from, std::span<std::byte> place);

  /// Copies as much of the message as the budget allows; while some is missing, notes its sender.
  bool poll();
  /// Asks for the message, if that wasn't done before. Returns false if the lane has no credit now; call again.
  bool ask();
  /// Copies as much as the budget allows if the message has arrived. Returns true if it did anything.
  bool advance();
  bool done() const { return done_; }
  /// Notes the sender as missing.
  void note_missing() const { message_.note_missing(); }

 private:
  Landing* landing_;
  Message message_;
  std::span<std::byte> place_;
  std::size_t copied_ = 0;
  bool asked_ = false;
  bool done_ = false;
};

/// Condition that all pieces of a message, as SentInPieces sends them, are at their places.
class ArrivedInPieces {
 public:
  ArrivedInPieces(Landing& landing, int from, std::span<std::byte> place)
      : landing_(landing), from_(from), place_(place), arrival_(landing, from, 0, piece()) {}
  bool poll();

 private:
  std::span<std::byte> piece() const { return place_.subspan(at_, std::min(place_.size() - at_, landing_.me().message_piece())); }
  Landing& landing_;
  int from_;
  std::span<std::byte> place_;
  std::size_t at_ = 0;
  std::uint32_t step_ = 0;
  Arrival arrival_;
};

/// Condition that a copy within this rank is done. Copies as much as the budget allows; nothing if `from` == `to`.
class LocalCopy {
 public:
  LocalCopy(Collective& me, std::byte* to, const std::byte* from, std::size_t bytes)
      : me_(me), to_(to), from_(from), bytes_(bytes) {}
  bool poll();
  /// Returns the number of bytes that are copied.
  std::size_t copied() const { return copied_; }

 private:
  Collective& me_;
  std::byte* to_;
  const std::byte* from_;
  std::size_t bytes_;
  std::size_t copied_ = 0;
};

/// Returns how a reduction writes an output of this size: with streaming stores, past the cache, if it is far larger than the
/// cache. (Copies use memcpy, which is half as fast again as a loop of streaming stores: 64 MiB in 39 against 61 ms on a 2.5 GHz
/// machine with AVX-512.)
inline kernels::Stores stores_for(std::size_t output_bytes) {
  return output_bytes >= kStreamingBytes ? kernels::Stores::streaming : kernels::Stores::cached;
}

}  // namespace tsprun::detail
