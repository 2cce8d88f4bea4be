// The building blocks of all algorithms: the operations' base class (Collective), a payload to send (Offer), and a message to
// receive (Incoming, Arrival). They hide where payloads lie and whether a peer's memory can be read in place ("viewed").
//
// A ticket is a position in a lane, so both ends of a lane must post the same messages in the same order: an algorithm sends a
// message, possibly an empty one, wherever the other side expects one.
#pragma once

#include "core/collectives/choice.h"
#include "core/collectives/group.h"
#include "core/collectives/small_vector.h"
#include "core/collectives/staging.h"
#include "core/kernels/reduce.h"
#include "core/streams/engine.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace tsprun::detail {

/// Number of peers for which an operation has room for its state without allocating.
inline constexpr std::size_t kInlinePeers = 16;

/// One call of a communicator, after its arguments were checked.
struct Call {
  const Group* group;
  std::shared_ptr<const Group> keep;  ///< keeps the group of a posted operation alive if the communicator is destroyed before
  Stream stream;
  OperationInfo info;
};

/// Base class of all operations of a communicator. Ranks are ranks of the group, unless a name says world.
class Collective : public Operation {
 public:
  int waiting_for() const final { return missing_; }
  std::uint32_t missing_segment() const final { return missing_segment_; }

  const Group& group() const { return *group_; }
  int size() const { return group_->size(); }
  int rank() const { return group_->rank; }
  /// Returns the next rank on the ring of all members.
  int right() const { return rank() + 1 == size() ? 0 : rank() + 1; }
  /// Returns the previous rank on the ring of all members.
  int left() const { return (rank() == 0 ? size() : rank()) - 1; }
  /// Returns the number of other members.
  int peers() const { return size() - 1; }
  /// Returns the i-th peer, i = 0 … peers()-1: rank()+1, rank()+2, … (cyclic). Each rank starts with a different peer, so that
  /// not all read the same memory at once.
  int peer(int i) const { return rank() + 1 + i < size() ? rank() + 1 + i : rank() + 1 + i - size(); }
  Stream stream() const { return stream_; }
  /// Returns the lane to and from a member on the operation's stream.
  LaneId lane(int group_rank) const { return {group_->member(group_rank).peer, stream_}; }
  /// Returns the envelope of a message that this operation sends; `step` distinguishes the messages of one operation.
  Envelope sent_envelope(std::uint32_t step) const { return with_step(sent_, step); }
  /// Returns the envelope of a message that this operation expects.
  Envelope expected_envelope(std::uint32_t step) const { return with_step(expected_, step); }

  /// Notes the member for which the operation waits.
  void set_missing(int group_rank) { set_missing_world(group_->member(group_rank).world); }
  /// Notes the member for which the operation waits, and which segment of its message, counted from 0, is missing.
  void set_missing_segment(int group_rank, std::size_t segment) {
    set_missing(group_rank);
    missing_segment_ = static_cast<std::uint32_t>(segment) + 1;
  }
  /// Notes the world rank for which the operation waits.
  void set_missing_world(int world_rank) {
    missing_ = world_rank;
    missing_segment_ = 0;
  }
  /// Returns the call of a sub-operation among some of the members, part `phase` (from 0) of this operation.
  Call among(const Group& members, std::uint64_t phase) const;
  /// Throws the error for a message from this member that has an unexpected outcome, see Engine::fail_receive().
  [[noreturn]] void fail(Engine& engine, Outcome outcome, int group_rank) const;

 protected:
  explicit Collective(const Call& call) : Collective(call, call.info) {}
  /// For operations that receive another kind of message than they send: `expected` describes the received one.
  Collective(const Call& call, const OperationInfo& expected)
      : Operation(call.info),
        group_(call.group),
        keep_(call.keep),
        stream_(call.stream),
        sent_(envelope_of(call.info)),
        expected_(envelope_of(expected)) {}

 private:
  static Envelope envelope_of(const OperationInfo& info);
  static Envelope with_step(Envelope envelope, std::uint32_t step) {
    envelope.tag |= (step & 0xffff) << 16;
    return envelope;
  }
  /// Returns the description that errors about an unexpected message compare it with.
  virtual const OperationInfo& expected_info() const { return info_; }

  const Group* group_;
  std::shared_ptr<const Group> keep_;
  Stream stream_;
  Envelope sent_;
  Envelope expected_;
  int missing_ = -1;
  std::uint32_t missing_segment_ = 0;
};

/// Number of receivers of the bytes of an Offer.
enum class Readers : std::uint8_t {
  one,     ///< every part goes to one peer only
  several  ///< the same bytes go to several peers
};

/// Owner of the memory of an Offer.
enum class Owner : std::uint8_t {
  caller,    ///< the caller's; it doesn't change until the operation is complete
  changing,  ///< the caller's, but the operation may overwrite it before all peers have read, so they never read it in place
  operation  ///< heap memory of the operation itself
};

/// Memory of which parts are sent to peers. Small messages are copied into the lane at once, somewhat larger payloads into
/// staging memory; large ones are read by the peers, in place if they lie in the heap, else from a copy there. The order of calls
/// is set(), prepare() and send() as often as needed, all_sent(), drained() until it returns true.
class Offer {
 public:
  Offer() = default;
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;

  /// Chooses how to send parts of `memory`. `largest`: size of the largest single message in bytes. Allocates staging memory if
  /// it is needed. Throws Error(out_of_memory).
  void set(const Collective& operation, std::span<const std::byte> memory, std::size_t largest, Readers readers,
           Owner owner = Owner::caller);
  /// Declares the bytes of this range final; must precede their send(). May copy them. Returns false if there is no room for a
  /// copy until a peer has read earlier ones; the operation is then marked as waiting for that peer, and must call again.
  bool prepare(Collective& operation, std::size_t offset, std::size_t bytes);
  /// Does the same for all of the memory, with at most `budget` bytes of copying per call if it is large. `prepared` counts the
  /// bytes prepared so far (begin with 0), `budget` is reduced by those copied. Returns true when all is prepared.
  bool prepare_all(Collective& operation, Engine& engine, std::size_t& prepared, std::size_t& budget);
  /// Sends a range to a member. Returns false if the lane has no credit now; call again.
  bool send(Collective& operation, int to, std::uint32_t step, std::size_t offset, std::size_t bytes);
  /// Tells that no send() will follow.
  void all_sent();
  /// Returns true when no peer reads the memory any more. Otherwise marks the operation as waiting for a peer that still does.
  bool drained(Collective& operation, Engine& engine);

 private:
  bool find_room(Collective& operation);

  enum class Way : std::uint8_t {
    copied,    ///< copied into the lane by send()
    staged,    ///< copied into a block of staging memory; the operation doesn't wait for its readers
    in_place,  ///< peers read the memory itself
    mirrored   ///< peers read a copy in the heap
  };
  Way way_ = Way::copied;
  std::span<const std::byte> memory_;
  HeapBlock mirror_;
  Staging::Block* block_ = nullptr;
  SmallVector<PendingSend, kInlinePeers> pending_;
};

/// One message that is expected from a peer. Trivially copyable: operations keep arrays of them.
class Incoming {
 public:
  /// Expects a message of `bytes` from a member. If its sender's memory can be viewed, a message larger than `receive_up_to` (any
  /// message, if `landing` is null) is viewed in place; any other is received into `landing`, which may be null only if
  /// needs_landing() is false. Returns false if the lane has no credit now; call again.
  bool post(const Collective& operation, int from, std::uint32_t step, std::size_t bytes, std::byte* landing,
            std::size_t receive_up_to = kReceivedBytes);
  /// Expects a message whose receive into `landing` was posted earlier.
  void adopt(Ticket ticket, int from, std::byte* landing);
  /// Returns true once the message has arrived. Throws Error(mismatch | corrupt | disconnected).
  bool arrived(const Collective& operation, Engine& engine);
  bool posted() const { return ticket_ != kNotNow; }
  bool here() const { return here_; }
  /// Returns true if the message is viewed in the sender's memory, false if it is received into `landing`.
  bool viewed() const { return viewed_; }
  /// Returns the address of `count` bytes at `offset` of a message that has arrived. Valid until release().
  const std::byte* bytes(const Collective& operation, std::size_t offset, std::size_t count) const;
  /// Tells the sender that a viewed message was read. To be called once for every message that arrived.
  void release(const Collective& operation);

  /// Returns true if messages from this member need a landing, whatever their size, because its memory can't be viewed.
  static bool needs_landing(const Collective& operation, int from) { return !operation.group().member(from).can_view; }

 private:
  Ticket ticket_ = kNotNow;
  std::byte* landing_ = nullptr;
  std::size_t timed_bytes_ = 0;   // 0: too few to be timed
  std::uint64_t pending_ns_ = 0;  // when a poll first found it missing; 0: none did
  int from_ = -1;
  bool viewed_ = false;
  bool here_ = false;
};

/// Heap memory for messages whose final place a transport can't write to: as large as the whole buffer, allocated when it is
/// first needed.
class Landing {
 public:
  /// Returns the address at which to receive a message for `place`, a part of `whole`: `place` itself, if the transport can write
  /// there. Throws Error(out_of_memory).
  std::byte* of(const Collective& operation, int from, std::span<std::byte> whole, std::span<std::byte> place);

 private:
  HeapBlock block_;
};

/// One message that is expected from a peer and belongs at a place in a local buffer, to which it is copied piece by piece if it
/// didn't arrive there.
class Arrival {
 public:
  /// Expects a message as long as `place`, a part of `whole`. Returns false if the lane has no credit now; call again.
  bool post(const Collective& operation, int from, std::uint32_t step, std::span<std::byte> whole, std::span<std::byte> place,
            Landing& landing);
  /// Expects a message whose receive into `place` was posted earlier.
  void adopt(Ticket ticket, int from, std::span<std::byte> place);
  bool posted() const { return message_.posted(); }
  /// Returns true when the message is at its place.
  bool done() const { return done_; }
  /// Copies at most `budget` bytes once the message has arrived, and reduces `budget` by them. Returns true if it did anything.
  bool advance(const Collective& operation, Engine& engine, std::size_t& budget);

 private:
  Incoming message_;
  std::byte* place_ = nullptr;
  bool in_place_ = false;  // received where it belongs
  std::size_t bytes_ = 0;
  std::size_t copied_ = 0;
  bool done_ = false;
};

/// Returns how a reduction writes an output of this size: with streaming stores, past the cache, if it is far larger than the
/// cache. (Copies use memcpy, which is half as fast again as a loop of streaming stores: 64 MiB in 39 against 61 ms on a 2.5 GHz
/// machine with AVX-512.)
inline kernels::Stores stores_for(std::size_t output_bytes) {
  return output_bytes >= kStreamingBytes ? kernels::Stores::streaming : kernels::Stores::cached;
}

/// Copies at most `budget` bytes of a local buffer of `bytes`, beginning at `done`, and updates `done` and `budget`. If `to` ==
/// `from`, nothing is copied and the budget isn't used. Returns true when all bytes are there.
bool copy_some(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t& done, std::size_t& budget);

}  // namespace tsprun::detail
