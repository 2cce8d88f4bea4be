// A communicator: collectives and point-to-point messages on a group of ranks.
//
// Conventions
//   · Ranks in arguments and results are ranks *of the group*, 0 … size()-1. Reports and errors name ranks of the world.
//   · All ranks of the group call the same operations in the same order on a given stream, with the same counts, dtype, root,
//     reduction and options. If they don't, the job ends with Error(mismatch) that names both sides.
//   · Every operation has a blocking form and a `post_` form that returns a Work. Buffers of a posted operation stay untouched
//     until the Work is complete. The blocking form is post + wait.
//   · Buffers may lie in any memory. Payloads that lie in the rank's heap (Context::heap()) move with one copy, straight between
//     the ranks' heaps; larger payloads in plain memory are copied into the heap first, which costs a second copy and as much
//     heap.
//   · In place: all_gather(v) if send is recv's own chunk, reduce_scatter(v) if recv is send's own chunk, all_reduce, reduce and
//     broadcast by nature or with send == recv. Any other overlap is refused.
//   · Reductions add in the canonical order: chunk c sums ranks c+1, c+2, …, c (cyclic), the first term copied. A reduce to
//     root r is one chunk: r+1, …, r. An all_reduce is cut into size() chunks, the first count mod size() one element longer.
//     bf16 is summed in f32 and rounded once. So results are bit-identical from run to run and between algorithms.
//     min and max propagate NaN.
//     Reductions of DType::byte are refused.
//   · Errors: Error(refused) before anything moved for arguments that can't be right; afterwards whatever ended the wait.
#pragma once

#include "core/collectives/choice.h"
#include "core/collectives/group.h"
#include "core/memory/heap.h"
#include "core/streams/engine.h"
#include "core/tensor/dtype.h"

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tsprun {

class Chunks;

/// How to run one call. All ranks of the group must agree on `stream` and `algorithm`.
struct CallOptions {
  Stream stream = Stream::control;
  Purpose purpose = Purpose::other;            ///< which traffic counter
  Algorithm algorithm = Algorithm::automatic;  ///< overrides the table for this call
};

class Communicator {
 public:
  /// `members`: ranks of the world, distinct, in group order, containing this rank. `choices` and all others must outlive it.
  Communicator(Engine& engine, Heap& heap, Staging& staging, const ChoiceTable& choices, std::vector<int> members);
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  int rank() const { return group_->rank; }
  int size() const { return group_->size(); }
  /// World rank of a member.
  int world_rank(int group_rank) const { return group_->member(group_rank).world; }
  /// The members as this rank reaches them.
  const Group& group() const { return *group_; }
  /// All members, as ranks of the world.
  std::span<const int> members() const { return group_->ranks; }

  /// What the table chooses for such an operation on this group; `bytes` of the whole buffer, as `bench` counts them.
  Algorithm algorithm(Op op, std::size_t bytes) const { return choose(op, bytes, {}); }
  /// Why this operation can't be hierarchical on this group; empty if it can. Asked for nevertheless, the table chooses among the
  /// other algorithms.
  std::string why_not_hierarchical(Op op) const;

  /// A communicator on some members (group ranks, in the new order). Local: no message. Every member of the new group calls it
  /// with the same list; ranks outside the list must not call it.
  Communicator subgroup(std::span<const int> group_ranks) const;
  /// Collective: ranks of equal colour form a group, ordered by (key, rank).
  Communicator split(int colour, int key);

  // Counts are in elements of the buffers' dtype. n = size(), p = rank().

  /// root's buffer to all.
  void broadcast(Buffer buffer, int root, CallOptions options = {});
  Work post_broadcast(Buffer buffer, int root, CallOptions options = {});

  /// recv [n·count] = concatenation of the ranks' send [count].
  void all_gather(ConstBuffer send, Buffer recv, CallOptions options = {});
  Work post_all_gather(ConstBuffer send, Buffer recv, CallOptions options = {});
  /// Chunk r of recv has counts[r] elements and comes from rank r; send has counts[p]. Chunks lie one after another.
  void all_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, CallOptions options = {});
  Work post_all_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, CallOptions options = {});
  /// The same, but chunk r lies at element offsets[r] of recv: chunks in any order and with holes, which stay untouched. They
  /// must not overlap, and lie within recv; where an empty chunk lies is of no account. Offsets are each rank's own affair:
  /// others may have laid out their buffers differently.
  void all_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, std::span<const std::size_t> offsets,
                    CallOptions options = {});
  Work post_all_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, std::span<const std::size_t> offsets,
                         CallOptions options = {});

  /// recv [count] = reduction over ranks of chunk p of send [n·count].
  void reduce_scatter(ConstBuffer send, Buffer recv, Reduction reduction, CallOptions options = {});
  Work post_reduce_scatter(ConstBuffer send, Buffer recv, Reduction reduction, CallOptions options = {});
  /// Chunk r of send has counts[r] elements and ends on rank r. Chunks lie one after another.
  void reduce_scatter_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, Reduction reduction,
                        CallOptions options = {});
  Work post_reduce_scatter_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, Reduction reduction,
                             CallOptions options = {});
  /// The same, but chunk r lies at element offsets[r] of send, as for all_gather_v.
  void reduce_scatter_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, std::span<const std::size_t> offsets,
                        Reduction reduction, CallOptions options = {});
  Work post_reduce_scatter_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts,
                             std::span<const std::size_t> offsets, Reduction reduction, CallOptions options = {});

  /// recv = reduction over ranks of send, on every rank.
  void all_reduce(ConstBuffer send, Buffer recv, Reduction reduction, CallOptions options = {});
  void all_reduce(Buffer buffer, Reduction reduction, CallOptions options = {}) {
    all_reduce(buffer, buffer, reduction, options);
  }
  Work post_all_reduce(ConstBuffer send, Buffer recv, Reduction reduction, CallOptions options = {});

  /// recv = reduction over ranks of send, on root only (elsewhere recv is ignored and may be empty).
  void reduce(ConstBuffer send, Buffer recv, Reduction reduction, int root, CallOptions options = {});
  Work post_reduce(ConstBuffer send, Buffer recv, Reduction reduction, int root, CallOptions options = {});

  /// Chunk r of send [n·count] goes to rank r, whose chunk p of recv [n·count] it becomes. send and recv must not overlap.
  void all_to_all(ConstBuffer send, Buffer recv, CallOptions options = {});
  Work post_all_to_all(ConstBuffer send, Buffer recv, CallOptions options = {});
  /// send_counts[r] elements to rank r, recv_counts[r] from it; chunks lie one after another.
  void all_to_all_v(ConstBuffer send, std::span<const std::size_t> send_counts, Buffer recv,
                    std::span<const std::size_t> recv_counts, CallOptions options = {});
  Work post_all_to_all_v(ConstBuffer send, std::span<const std::size_t> send_counts, Buffer recv,
                         std::span<const std::size_t> recv_counts, CallOptions options = {});

  /// The k-th send to a peer on a stream is matched by its k-th recv from here; count and dtype must be equal. A send is complete
  /// when the buffer may be reused. Sends and receives to and from oneself are refused.
  void send(ConstBuffer buffer, int to, CallOptions options = {});
  Work post_send(ConstBuffer buffer, int to, CallOptions options = {});
  void recv(Buffer buffer, int from, CallOptions options = {});
  Work post_recv(Buffer buffer, int from, CallOptions options = {});
  /// A send and a recv at once, neither of which waits for the other: all ranks of a circle may call it on one stream. The two
  /// peers, counts and dtypes may differ. On the other side each half may be met by a send_recv as well as by a plain recv or
  /// send; both count in the order of messages above. With to == from == rank() it is a copy. send and recv must not overlap.
  void send_recv(ConstBuffer send, int to, Buffer recv, int from, CallOptions options = {});
  Work post_send_recv(ConstBuffer send, int to, Buffer recv, int from, CallOptions options = {});

  /// Returns when all ranks of the group have called it.
  void barrier(CallOptions options = {});
  Work post_barrier(CallOptions options = {});

 private:
  /// Blocking calls keep their operation on the stack and need no allocation.
  enum class Mode : std::uint8_t { blocking, posted };
  /// What the ranks of a group must have in common, beside the operation itself.
  struct Agreement {
    int root = -1;  ///< rank of the group
    std::size_t count = 0;
    std::span<const std::size_t> counts = {};  ///< of a `v` operation
  };

  /// Where the chunks of a `v` operation lie; none: one after another.
  using Placement = std::optional<std::span<const std::size_t>>;

  /// All that the members must have in common, as one block of memory to hash.
  struct Signed {
    std::uint64_t op;
    std::uint64_t dtype;
    std::uint64_t reduction;
    std::uint64_t algorithm;
    std::int64_t root;    // of messages: the sender
    std::uint64_t other;  // of messages: the receiver
    std::uint64_t count;
    std::uint64_t counts;  // hash of all counts
    std::uint64_t group;
  };
  static_assert(sizeof(Signed) == 9 * 8, "no padding, or its bytes would be hashed");

  enum class Direction : std::uint8_t { out, in };
  /// The messages in one direction so far, and the signature of the last: the next is likely to be of its kind.
  struct OneWay {
    std::uint32_t messages = 0;
    DType dtype = DType::byte;
    std::size_t count = std::numeric_limits<std::size_t>::max();  // no message is so long
    std::uint64_t signature = 0;
  };
  struct Correspondence {
    OneWay out;
    OneWay in;
  };

  Algorithm choose(Op op, std::size_t bytes, const CallOptions& options) const;
  OperationInfo describe(Op op, ConstBuffer own, Reduction reduction, Algorithm algorithm, const Agreement& agreement,
                         const CallOptions& options);
  std::uint64_t sign_message(int from, int to, DType dtype, std::size_t count) const;
  /// Numbers and signs the next message to or from `other`.
  Envelope next_message(Direction direction, ConstBuffer buffer, int other, const CallOptions& options);
  OperationInfo describe_message(Op op, const Envelope& message, ConstBuffer buffer, int other) const;
  template <class Operation, class... Arguments>
  Work start(Mode mode, const CallOptions& options, const OperationInfo& info, Arguments&&... arguments);

  Work start_broadcast(Mode mode, Buffer buffer, int root, const CallOptions& options);
  Work start_all_gather(Mode mode, ConstBuffer send, Buffer recv, Chunks chunks, const Agreement& agreement,
                        const CallOptions& options);
  Work start_all_gather(Mode mode, ConstBuffer send, Buffer recv, const CallOptions& options);
  Work start_all_gather_v(Mode mode, ConstBuffer send, Buffer recv, std::span<const std::size_t> counts,
                          const Placement& placement, const CallOptions& options);
  Work start_reduce_scatter(Mode mode, ConstBuffer send, Buffer recv, Chunks chunks, Reduction reduction,
                            const Agreement& agreement, const CallOptions& options);
  Work start_reduce_scatter(Mode mode, ConstBuffer send, Buffer recv, Reduction reduction, const CallOptions& options);
  Work start_reduce_scatter_v(Mode mode, ConstBuffer send, Buffer recv, std::span<const std::size_t> counts,
                              const Placement& placement, Reduction reduction, const CallOptions& options);
  Work start_all_reduce(Mode mode, ConstBuffer send, Buffer recv, Reduction reduction, const CallOptions& options);
  Work start_reduce(Mode mode, ConstBuffer send, Buffer recv, Reduction reduction, int root, const CallOptions& options);
  Work start_all_to_all(Mode mode, ConstBuffer send, Buffer recv, const CallOptions& options);
  Work start_all_to_all_v(Mode mode, ConstBuffer send, std::span<const std::size_t> send_counts, Buffer recv,
                          std::span<const std::size_t> recv_counts, const CallOptions& options);
  Work start_send(Mode mode, ConstBuffer buffer, int to, const CallOptions& options);
  Work start_recv(Mode mode, Buffer buffer, int from, const CallOptions& options);
  Work start_send_recv(Mode mode, ConstBuffer send, int to, Buffer recv, int from, const CallOptions& options);
  Work start_barrier(Mode mode, const CallOptions& options);

  std::shared_ptr<const Group> group_;  // shared with posted operations, which may outlive the communicator
  const ChoiceTable* choices_;
  std::uint32_t sequence_[kStreams] = {};        // collectives begun, by stream
  std::vector<Correspondence> peers_[kStreams];  // by stream and peer; empty until the first message
};

}  // namespace tsprun
