// An operation of a communicator: a call's arguments, and the coroutine that carries it out.
//
// An algorithm is a coroutine `Task algorithm(Collective& me, const Arguments& call)`. Until it first waits, for `co_await
// me.turn()`, it runs within the call: there it allocates what it needs, so that a rank's memory use depends on its calls alone.
// From there on it runs when the operation is at the head of its stream, and waits as streams/task.h describes. All that it may
// wait for is in exchange.h and peers.h, which also note which rank is missing.
#pragma once

#include "core/collectives/choice.h"
#include "core/collectives/chunks.h"
#include "core/collectives/group.h"
#include "core/kernels/reduce.h"
#include "core/streams/engine.h"
#include "core/streams/task.h"
#include "tsprun/communicator.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>

namespace tsprun::detail {

/// A call of a communicator whose arguments were checked.
struct Call {
  const Group* group;
  std::shared_ptr<const Group> keep;  ///< keeps the group of a posted operation alive if the communicator is destroyed before
  Stream stream;
  OperationInfo info;
  bool blocking = false;  ///< the caller waits in it, and so do, as a rule, those of the other members
};

/// Identity of the message that a send_recv receives. Its dtype and size are those of `recv`.
struct ExpectedMessage {
  std::uint64_t signature = 0;
  std::uint32_t group_sequence = 0;  ///< 0: it is identified like the messages that the operation sends
};

/// The buffers and ranks of a call. Each operation uses those that it has; ranks are ranks of the group.
struct Arguments {
  ConstBuffer send = {};
  Buffer recv = {};                            ///< in a broadcast, the buffer
  Chunks chunks = Chunks::uniform(1, 0);       ///< of the whole buffer; in an all_to_all, of recv
  Chunks send_chunks = Chunks::uniform(1, 0);  ///< of an all_to_all
  int root = -1;                               ///< the root; in messages, the receiver
  int source = -1;                             ///< in messages, the sender
  Ticket posted = kNotNow;                     ///< of a receive into `recv` that was posted earlier
  ExpectedMessage expected = {};               ///< of a send_recv
  MessageInfo* received = nullptr;             ///< of a recv: where to note what it took
};

class Collective;
/// Coroutine of an algorithm. The operation and the arguments outlive it.
using Start = Task(Collective& me, const Arguments& call);

/// Condition that an algorithm awaits last: see Collective::finished().
struct Finished {
  Collective& me;
  bool poll();
};

/// An operation of a communicator. Ranks are ranks of the group, unless a name says world.
class Collective final : public Operation {
 public:
  /// Makes the operation and runs the algorithm to its me.turn(). Throws Error(out_of_memory).
  Collective(const Call& call, Start* start, Arguments&& arguments) : Collective(call, start, nullptr, std::move(arguments)) {}
  /// Does the same with arguments that outlive the operation.
  Collective(const Call& call, Start* start, const Arguments& arguments) : Collective(call, start, &arguments, std::nullopt) {}
  static void* operator new(std::size_t bytes, FramePool& frames) { return frames.take(bytes); }
  static void operator delete(void* block) { FramePool::give_back(block); }
  static void operator delete(void* block, FramePool&) { FramePool::give_back(block); }

  bool step(Engine& engine) override;
  int waiting_for() const override { return missing_ == kWhoever ? likely_sender() : missing_; }
  std::uint64_t received() const override;
  /// Returns the payload bytes that all members together receive. Of messages and all_to_alls a rank knows only what it receives
  /// itself; they count as if all members received as much.
  std::uint64_t received_by_all() const;
  bool needs_core() const override { return needs_core_; }
  std::uint32_t missing_segment() const override { return missing_segment_; }

  const Group& group() const { return *group_; }
  /// Returns the algorithm, and what it was given.
  Start* algorithm() const { return algorithm_; }
  const Arguments& arguments() const { return *arguments_; }
  Engine& engine() const { return *engine_; }
  FramePool& frames() const { return engine().frames(); }
  int size() const { return group_->size(); }
  int rank() const { return group_->rank; }
  /// Returns the next rank on the ring of all members.
  int right() const { return rank() + 1 == size() ? 0 : rank() + 1; }
  /// Returns the previous rank on the ring of all members.
  int left() const { return (rank() == 0 ? size() : rank()) - 1; }
  /// Returns the rank that is `hops` places (less than the group's size) to the left on that ring.
  int left_by(int hops) const { return rank() - hops < 0 ? rank() - hops + size() : rank() - hops; }
  /// Returns the number of other members.
  int peers() const { return size() - 1; }
  /// Returns the i-th peer, i = 0 … peers()-1: rank()+1, rank()+2, … (cyclic). Each rank starts with a different peer, so that
  /// not all read the same memory at once.
  int peer(int i) const { return rank() + 1 + i < size() ? rank() + 1 + i : rank() + 1 + i - size(); }
  Stream stream() const { return stream_; }
  /// Returns true if the caller waits in the call. Operations that were posted are to leave before their callers compute.
  bool is_blocking() const { return blocking_; }
  /// Returns the lane to and from a member on the operation's stream.
  LaneId lane(int group_rank) const { return {group_->member(group_rank).peer, stream_}; }
  /// Returns the envelope of a message that this operation sends; `step` distinguishes the messages of one operation.
  Envelope sent_envelope(std::uint32_t step) const { return with_step(sent_, step); }
  /// Returns the envelope of a message that this operation expects.
  Envelope expected_envelope(std::uint32_t step) const {
    return with_step(arguments_->expected.group_sequence == 0 ? sent_ : envelope_of(expected_info()), step);
  }

  /// Returns the condition that the operation is at the head of its stream. An algorithm waits for it once, before anything else.
  NextTurn turn() const { return {}; }
  /// Returns the condition that an algorithm awaits last: it marks the operation as complete and is never true. So the
  /// algorithm's heap memory, which its variables hold, is kept until the operation is destroyed, once it was waited for: see
  /// Work.
  Finished finished() { return {*this}; }
  /// Returns the condition that other streams had their turn, after a piece of work of this one.
  NextTurn pause() {
    moved();
    return {};
  }
  // Work of operations on payloads. Nothing else touches payloads, so that a played rank (EngineOptions::counted) can leave it
  // out.
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const;
  void reduce(DType dtype, std::span<const std::byte* const> terms, std::byte* out, std::size_t count,
              kernels::Stores stores = kernels::Stores::cached) const;
  void reduce_term(DType dtype, const std::byte* partial, const std::byte* term, std::byte* out, std::size_t count,
                   bool last) const;
  void widen(DType dtype, const std::byte* term, std::byte* out, std::size_t count) const;

  /// Returns whether virtual time plays it, so that what it does takes no real time.
  bool is_played() const { return counted_ != nullptr; }
  /// Returns whether virtual time plays it on a machine of kind "engines" (core/virtual/player.h), which copies and sums in no
  /// time: one step does all that it can.
  bool is_engine() const { return counted_ != nullptr && !counted_->in_pieces; }
  /// Returns the size, in bytes, of the segments in which ranks pass on `bytes`: kSegmentBytes, which stays in caches. Engines in
  /// virtual time have no such caches, and cut `bytes` into at most `segments`, as GPUs' libraries take larger ones for more
  /// bytes.
  std::size_t segment_bytes(std::size_t bytes, std::size_t segments) const {
    return is_engine() ? std::max<std::size_t>(kSegmentBytes, (bytes + segments - 1) / segments) : kSegmentBytes;
  }
  /// Returns the size, in bytes, of the pieces in which a message travels. (Virtual ranks' messages travel whole.)
  std::size_t message_piece() const { return counted_ == nullptr ? kMessagePieceBytes : std::numeric_limits<std::size_t>::max(); }

  /// Returns true if a member has left the job or ended.
  bool has_left(int group_rank) const { return engine_->has_left(group_->member(group_rank).world); }

  /// Tells waits that something was done: see Engine::moved().
  void moved() { engine().moved(); }
  /// Bytes that may still be copied before other streams get their turn.
  std::size_t budget = 0;

  /// Notes the member for which the operation waits, and which segment of its message is missing, from 1; 0: it isn't cut.
  void set_missing(int group_rank, std::uint32_t segment = 0) { set_missing_world(group_->member(group_rank).world, segment); }
  /// Does the same for a world rank. If several are noted in one step, the operation waits for the last one.
  void set_missing_world(int world_rank, std::uint32_t segment = 0) {
    needs_core_ = needs_core_ || engine_->shares_core(world_rank);
    missing_ = world_rank;
    missing_segment_ = segment;
  }
  /// Notes that the operation waits for whichever member sends first.
  void set_missing_whoever() {
    missing_ = kWhoever;
    missing_segment_ = 0;
  }
  /// Identifies the message that the operation sends or has found, of which its call doesn't tell: the group rank of the other
  /// end, and the message's number.
  void identify(int other, std::uint32_t number) {
    info_.root = group_->member(other).world;
    info_.group_sequence = number;
    sent_.sequence = number;
  }
  /// Returns the call of a sub-operation among some of the members, part `phase` (from 0) of this operation.
  Call among(const Group& members, std::uint64_t phase) const;
  /// Throws the error for a message from this member that has an unexpected outcome, see Engine::fail_receive().
  [[noreturn]] void fail(Outcome outcome, int group_rank) const;

 private:
  friend struct Finished;
  friend class Subcollective;
  Collective(const Call& call, Start* start, const Arguments* arguments, std::optional<Arguments>&& own);
  bool step_on(OwnChannel& channel);
  static Envelope envelope_of(const OperationInfo& info);
  int likely_sender() const;
  /// Returns the description of the messages that the operation receives.
  OperationInfo expected_info() const;
  static Envelope with_step(Envelope envelope, std::uint32_t step) {
    envelope.tag |= (step & 0xffff) << 16;
    return envelope;
  }

  static constexpr int kWhoever = -2;  // missing_: any member

  const Group* group_;
  std::shared_ptr<const Group> keep_;
  Stream stream_;
  Start* algorithm_;
  Engine* engine_;
  std::optional<Arguments> own_arguments_;
  const Arguments* arguments_;
  Chores* counted_;  // EngineOptions::counted
  Envelope sent_;
  int missing_ = -1;
  mutable int likely_ = -1;  // likely_sender(), as of likely_since_ns_
  mutable std::uint64_t likely_since_ns_ = 0;
  std::uint32_t missing_segment_ = 0;
  bool needs_core_ = false;  // a rank that was noted in this step shares this one's core
  bool complete_ = false;
  bool blocking_;
  Task task_;
};

inline bool Finished::poll() {
  me.complete_ = true;
  return false;
}

/// Condition that a part of an operation, an operation among some of the members, is complete.
class Subcollective {
 public:
  Subcollective(Collective& me, Collective& part) : me_(me), part_(part) {}
  bool poll();

 private:
  Collective& me_;
  Collective& part_;
};

}  // namespace tsprun::detail
