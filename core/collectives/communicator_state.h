// State of a communicator: its group, the numbers and signatures of its calls, and how each call becomes an operation. The
// interface, with the conventions that all calls share, is tsprun/communicator.h.
#pragma once

#include "core/collectives/choice.h"
#include "core/collectives/group.h"
#include "core/collectives/registry.h"
#include "core/memory/heap.h"
#include "core/streams/channel.h"
#include "core/streams/engine.h"
#include "tsprun/communicator.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail {

/// State of a Communicator; used by the rank's thread. Posted operations share it, because they may outlive the communicator. It
/// holds the group by value, so that a call reaches its engine and members by no more pointers than it must.
struct CommunicatorState : std::enable_shared_from_this<CommunicatorState> {
  /// Makes the state of a communicator of `members`: distinct ranks of the world, in group order, this rank among them. All
  /// members must pass the same list, and must create several communicators with one list in the same order. All references must
  /// outlive the communicator. `kind`: whether it has a channel of its own; phantoms and played ranks never have. Throws
  /// Error(refused) if the list is invalid or a member can't be reached.
  CommunicatorState(Engine& engine, Heap& heap, Staging& staging, const ChoiceTable& table, std::vector<int> members,
                    Channel kind = Channel::streams);

  /// Makes a communicator with such a state.
  static Communicator make(Engine& engine, Heap& heap, Staging& staging, const ChoiceTable& table, std::vector<int> members,
                           Channel kind = Channel::streams);
  /// Gives a communicator's group a name for this rank's errors and trace.
  static void give_name(const Communicator& communicator, std::string name) {
    const Group& group = communicator.state_->group;
    group.engine->name_group(group.id, std::move(name));
  }
  /// Returns the state of a communicator.
  static const CommunicatorState& of(const Communicator& communicator) { return *communicator.state_; }

  /// Mode of a call. A blocking call keeps its operation on the stack, and needs no allocation.
  enum class Mode : std::uint8_t { blocking, posted };
  /// Arguments that all ranks of the group must pass alike, beside the operation itself and its root.
  struct Agreement {
    std::size_t count = 0;
    std::span<const std::size_t> counts = {};  ///< all counts of a `_v` operation
  };
  /// A collective whose arguments were checked. (Its members are set one by one: as an aggregate, it would be cleared first,
  /// which takes 10 ns.)
  struct CheckedCall {
    explicit CheckedCall(Op operation) : op(operation) {}
    CheckedCall(Op operation, std::uint64_t whole_bytes, std::size_t count, const ConstBuffer& send, const Buffer& recv)
        : op(operation), bytes(whole_bytes) {
      agreement.count = count;
      arguments.send = send;
      arguments.recv = recv;
    }
    Op op;
    std::uint64_t bytes = 0;  ///< of the whole buffer, by which the algorithm is chosen
    Agreement agreement;
    Arguments arguments;
    Reduction reduction = Reduction::sum;
  };

  /// Counts of the chunks of a `_v` operation; none: it isn't one.
  using Counts = std::optional<std::span<const std::size_t>>;
  /// Offsets of the chunks of a `_v` operation; none: one after another.
  using Placement = std::optional<std::span<const std::size_t>>;

  /// Everything that the members must agree on, as one block of memory: its hash is the operation's signature.
  struct Signed {
    std::uint64_t op;
    std::uint64_t dtype;
    std::uint64_t reduction;
    std::uint64_t algorithm;
    std::int64_t root;    // in messages: the sender
    std::uint64_t other;  // in messages: the receiver
    std::uint64_t count;
    std::uint64_t counts;  // hash of all counts
    std::uint64_t group;
  };
  static_assert(sizeof(Signed) == 9 * 8, "no padding, or its bytes would be hashed");

  enum class Direction : std::uint8_t { out, in };
  /// Number of messages in one direction so far, with the last one's signature, which is kept because the next message usually
  /// has the same count and dtype.
  struct OneWay {
    std::uint32_t messages = 0;
    DType dtype = DType::byte;
    std::size_t count = std::numeric_limits<std::size_t>::max();  // differs from the count of any message
    std::uint64_t signature = 0;
  };
  struct Correspondence {
    OneWay out;
    OneWay in;
  };

  int rank() const { return group.rank; }
  int size() const { return group.size(); }
  /// Returns the world rank of a member.
  int world_rank(int group_rank) const { return group.member(group_rank).world; }
  /// Returns the reason why this operation can't use this algorithm on this group; empty if it can.
  std::string why_not(Op op, Algorithm algorithm) const { return choices->why_not(op, algorithm, in_order().shape()); }
  /// Returns the group as operations without a tag reach it.
  const Group& in_order() const { return channel == nullptr ? group : channel->group; }
  /// Returns the queue of operations without a tag.
  Stream queue(const CallOptions& options) const { return channel == nullptr ? options.stream : kTagged; }

  /// Returns the algorithm of a call, `bytes` as in Communicator::algorithm(). Throws Error(refused) if the options name one that
  /// the operation doesn't have, or that can't run on this group.
  const AlgorithmRow& choose(Op op, std::size_t bytes, const CallOptions& options) const;
  /// Describes a collective, signed; counts it in its stream.
  Call describe(const CheckedCall& call, const AlgorithmRow& algorithm, const CallOptions& options);
  std::uint64_t sign_message(int from, int to, DType dtype, std::size_t count) const;
  /// Describes a message with a tag; `other` may be kAnySource.
  Call describe_tagged(Op op, const ConstBuffer& buffer, int other, const CallOptions& options) const;
  /// Returns the envelope of the next message to or from `other`, with its number and signature.
  Envelope next_message(Direction direction, const ConstBuffer& buffer, int other, const CallOptions& options);
  Call describe_message(Op op, const Envelope& message, const ConstBuffer& buffer, int other, const CallOptions& options) const;
  /// Chooses the algorithm of a collective, and runs or posts it.
  Work start(Mode mode, CheckedCall&& call, const CallOptions& options);
  /// Runs or posts an operation.
  Work start(Mode mode, Call&& call, Start* algorithm, Arguments&& arguments);

  // Each checks the arguments of a call and starts the operation.
  Work start_broadcast(Mode mode, const Buffer& buffer, int root, const CallOptions& options);
  Work start_parts(Mode mode, Op op, const ConstBuffer& send, const Buffer& recv, Reduction reduction, const Counts& counts,
                   const Placement& placement, const CallOptions& options);  // all_gather, reduce_scatter and their `_v`
  Work start_all_reduce(Mode mode, const ConstBuffer& send, const Buffer& recv, Reduction reduction, const CallOptions& options);
  Work start_reduce(Mode mode, const ConstBuffer& send, const Buffer& recv, Reduction reduction, int root,
                    const CallOptions& options);
  Work start_all_to_all(Mode mode, const ConstBuffer& send, const Buffer& recv, const CallOptions& options);
  Work start_all_to_all_v(Mode mode, const ConstBuffer& send, std::span<const std::size_t> send_counts, const Buffer& recv,
                          std::span<const std::size_t> recv_counts, const CallOptions& options);
  Work start_rooted_parts(Mode mode, Op op, const ConstBuffer& send, const Buffer& recv, const Counts& counts, int root,
                          const CallOptions& options);  // gather, scatter and their `_v`
  Work start_send(Mode mode, const ConstBuffer& buffer, int to, const CallOptions& options);
  Work start_recv(Mode mode, const Buffer& buffer, int from, const CallOptions& options);
  Work start_send_recv(Mode mode, const ConstBuffer& send, int to, const Buffer& recv, int from, const CallOptions& options);
  Work start_barrier(Mode mode, const CallOptions& options);

  /// The channel of a communicator that has its own, and the group as it is reached by that.
  struct Own {
    explicit Own(const Group& by_lanes);
    OwnChannel channel;
    Group group;
  };

  Group group;  ///< as it is reached by lanes: messages with a tag always use them
  const ChoiceTable* choices;
  std::unique_ptr<Own> channel;                         ///< null: all operations use lanes
  std::uint32_t sequence[kQueues] = {};                 ///< collectives begun, by queue
  std::vector<Correspondence> correspondence[kQueues];  ///< by queue and peer; empty until the first message
};

}  // namespace tsprun::detail
