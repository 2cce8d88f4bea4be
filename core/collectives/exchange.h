// What all algorithms are made of: the operation's base class, the sending of a payload (Offer) and the expecting of a message
// (Incoming). They hide where payloads lie and whether a peer's memory can be viewed.
//
// A ticket is a position in a lane, so both ends of a lane must post the same messages in the same order: every algorithm sends a
// message, if an empty one, wherever the other side expects one.
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

namespace tsprun {

/// State for so many peers lies in the operation itself.
inline constexpr std::size_t kInlinePeers = 16;

/// One call of a communicator, checked.
struct Call {
  const Group* group;
  std::shared_ptr<const Group> keep;  ///< of posted operations: the communicator may go before they end
  Stream stream;
  OperationInfo info;
};

/// Base of all operations of a communicator. Ranks are ranks of the group.
class Collective : public Operation {
 public:
  int waiting_for() const final { return missing_; }
  std::uint32_t missing_segment() const final { return missing_segment_; }

  const Group& group() const { return *group_; }
  int size() const { return group_->size(); }
  int rank() const { return group_->rank; }
  int right() const { return rank() + 1 == size() ? 0 : rank() + 1; }
  int left() const { return (rank() == 0 ? size() : rank()) - 1; }
  int peers() const { return size() - 1; }
  /// The i-th peer, from 0: everyone starts at another one, so that not all read the same memory at once.
  int peer(int i) const { return rank() + 1 + i < size() ? rank() + 1 + i : rank() + 1 + i - size(); }
  Stream stream() const { return stream_; }
  LaneId lane(int group_rank) const { return {group_->member(group_rank).peer, stream_}; }
  /// Of the messages that this operation sends, and of those that it expects.
  Envelope sent_envelope(std::uint32_t step) const { return with_step(sent_, step); }
  Envelope expected_envelope(std::uint32_t step) const { return with_step(expected_, step); }

  /// Notes whom the operation waits for, and for which segment, counted from 0, if its messages are cut into segments.
  void set_missing(int group_rank) { set_missing_world(group_->member(group_rank).world); }
  void set_missing_segment(int group_rank, std::size_t segment) {
    set_missing(group_rank);
    missing_segment_ = static_cast<std::uint32_t>(segment) + 1;
  }
  void set_missing_world(int world_rank) {
    missing_ = world_rank;
    missing_segment_ = 0;
  }
  /// The `phase`-th part of this operation, counted from 0: one of its own among some of the members.
  Call among(const Group& members, std::uint64_t phase) const;
  /// A message from this member is not what was expected, or the way to it is cut.
  [[noreturn]] void fail(Engine& engine, Outcome outcome, int group_rank) const;

 protected:
  explicit Collective(const Call& call) : Collective(call, call.info) {}
  /// `expected`: what is agreed about the messages that come, where it isn't the same as for those that go.
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
  /// What a message that isn't the expected one is held against.
  virtual const OperationInfo& expected_info() const { return info_; }

  const Group* group_;
  std::shared_ptr<const Group> keep_;
  Stream stream_;
  Envelope sent_;
  Envelope expected_;
  int missing_ = -1;
  std::uint32_t missing_segment_ = 0;
};

/// Who reads the messages of an Offer.
enum class Readers : std::uint8_t {
  one,     ///< each message has its own receiver
  several  ///< the same bytes go to several peers
};

/// Whose the memory of an Offer is.
enum class Owner : std::uint8_t {
  caller,    ///< the caller's: stays as it is until the operation is over
  changing,  ///< the caller's, but the operation itself may overwrite it before all peers have read: they never read it in place
  operation  ///< the operation's own heap memory
};

/// Memory of which parts are sent. Small messages are copied away at once; somewhat larger payloads are copied to staging;
/// large ones are read in place by the peers if they lie in the heap, else in a copy there.
class Offer {
 public:
  Offer() = default;
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;

  /// `memory`: all that may be sent; `largest`: the largest single message. What staging needs is taken from the heap here.
  void set(const Collective& operation, std::span<const std::byte> memory, std::size_t largest, Readers readers,
           Owner owner = Owner::caller);
  /// The bytes of this range are final now. Must precede their send(). Copies at most the range. False: there is no room for a
  /// copy before a peer has read earlier ones, for which the operation waits; call again.
  bool prepare(Collective& operation, std::size_t offset, std::size_t bytes);
  /// The same for all of the memory, at most `budget` bytes a call; true when all is prepared. `prepared` counts.
  bool prepare_all(Collective& operation, Engine& engine, std::size_t& prepared, std::size_t& budget);
  /// False: the lane has no credit now, call again.
  bool send(Collective& operation, int to, std::uint32_t step, std::size_t offset, std::size_t bytes);
  /// No send() will follow.
  void all_sent();
  /// True when the memory is the caller's again. If not, the operation waits for a peer that hasn't read.
  bool drained(Collective& operation, Engine& engine);

 private:
  bool find_room(Collective& operation);

  enum class Way : std::uint8_t {
    copied,    ///< into the lane, by send()
    staged,    ///< into a block of staging, whose readers nobody waits for
    in_place,  ///< peers read the caller's memory
    mirrored   ///< peers read a copy in the heap
  };
  Way way_ = Way::copied;
  std::span<const std::byte> memory_;
  HeapBlock mirror_;
  Staging::Block* block_ = nullptr;
  SmallVector<PendingSend, kInlinePeers> pending_;
};

/// One message that is expected from a peer. Plain state: operations keep arrays of them.
class Incoming {
 public:
  /// Expects `bytes` from a member. A large message that can be viewed is borrowed in place; any other is received into
  /// `landing`. `landing` may be null where the message is viewed anyway (see needs_landing). False: call again.
  bool post(const Collective& operation, int from, std::uint32_t step, std::size_t bytes, std::byte* landing,
            std::size_t receive_up_to = kReceivedBytes);
  /// Expects what was posted as a receive already.
  void adopt(Ticket ticket, int from, std::byte* landing);
  /// True once the message is there.
  bool arrived(const Collective& operation, Engine& engine);
  bool posted() const { return ticket_ != kNotNow; }
  bool here() const { return here_; }
  /// False: the bytes are in `landing`.
  bool viewed() const { return viewed_; }
  /// Bytes of a message that is here.
  const std::byte* bytes(const Collective& operation, std::size_t offset, std::size_t count) const;
  /// Ends the borrowing. To be called once for every message that arrived.
  void release(const Collective& operation);

  /// Whether messages from this member need a landing, whatever their size.
  static bool needs_landing(const Collective& operation, int from) { return !operation.group().member(from).can_view; }

 private:
  Ticket ticket_ = kNotNow;
  std::byte* landing_ = nullptr;
  std::size_t timed_bytes_ = 0;   // 0: too few to be timed
  std::uint64_t pending_ns_ = 0;  // when it was first looked for in vain; 0: it wasn't
  int from_ = -1;
  bool viewed_ = false;
  bool here_ = false;
};

/// Where messages land on their way to places that a transport can't write to: as much of the heap as the places' whole buffer,
/// taken when it is first needed.
class Landing {
 public:
  /// Where a message for `place`, a part of `whole`, shall be received: there, if it can be.
  std::byte* of(const Collective& operation, int from, std::span<std::byte> whole, std::span<std::byte> place);

 private:
  HeapBlock block_;
};

/// Copies a message that has arrived to its place, a segment at a time.
class Arrival {
 public:
  /// Expects a message as long as `place`, a part of `whole`. False: call again.
  bool post(const Collective& operation, int from, std::uint32_t step, std::span<std::byte> whole, std::span<std::byte> place,
            Landing& landing);
  /// Expects what was posted as a receive into `place` already.
  void adopt(Ticket ticket, int from, std::span<std::byte> place);
  bool posted() const { return message_.posted(); }
  bool done() const { return done_; }
  /// Copies at most `budget` bytes, of which it takes what it used. True if anything moved.
  bool advance(const Collective& operation, Engine& engine, std::size_t& budget);

 private:
  Incoming message_;
  std::byte* place_ = nullptr;
  bool in_place_ = false;  // received where it belongs
  std::size_t bytes_ = 0;
  std::size_t copied_ = 0;
  bool done_ = false;
};

/// How a reduction writes: past the cache, if a rank's output is far larger than it. (Copies are left to memcpy, which is
/// half as fast again as a loop of streaming stores: 64 MiB in 39 against 61 ms, on the 2.5 GHz AVX-512 machine of the bars.)
inline kernels::Stores stores_for(std::size_t output_bytes) {
  return output_bytes >= kStreamingBytes ? kernels::Stores::streaming : kernels::Stores::cached;
}

/// Copies a part of a local buffer, `budget` bytes at most, and advances `done`; true when all `bytes` are there.
bool copy_some(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t& done, std::size_t& budget);

}  // namespace tsprun
