// A communicator: collectives and point-to-point messages among a group of ranks, as in MPI or NCCL.
//
// Conventions
//   · Ranks in arguments and results are ranks *of the group*, 0 … size()-1. Reports and errors of the job name world ranks.
//   · All ranks of the group call the same operations in the same order on a given stream, with the same counts, dtype, root,
//     reduction and options. If they don't, the job ends with Error(mismatch) that names both sides: at the latest when ranks
//     leave (Context::leave()), where each was content with its own call, as in small broadcasts with unlike roots.
//   · Every operation has a blocking form and a `post_` form that returns a Work at once. Until the Work is complete, the caller
//     must neither write the operation's buffers nor read its results. The blocking form is post + wait.
//   · Buffers may lie in any memory. Payloads in the rank's heap (Context::allocate()) move with one copy, straight from heap
//     to heap. Payloads of more than 64 KiB in other memory are copied into it first (over tcp alone they aren't): a second copy,
//     which takes at most 32 MiB of the heap at a time, in an all_to_all_v and over RDMA as much as the payload.
//   · Lifetimes. Buffers must exist until the Work is complete, even if the Work itself was dropped. Counts, offsets, lists of
//     ranks and options are copied by the call. A HeapBlock that is destroyed under a pending operation goes back to the heap
//     at once, and the next block, of the program or of the library, may get its memory: the operation then reads or
//     overwrites what belongs to others, on this rank and its peers, and nothing reports it.
//   · Operations in place: all_gather(v) and gather(v) if send is the own chunk of recv, reduce_scatter(v) and scatter(v) if recv
//     is the own chunk of send, all_reduce and reduce if send == recv, broadcast always. Any other overlap of buffers is refused.
//   · Reductions add in the canonical order: chunk c sums ranks c+1, c+2, …, c (cyclic), the first term copied. A reduce to
//     root r is one chunk: r+1, …, r. An all_reduce is cut into size() chunks, the first count mod size() one element longer.
//     bf16 and f16 are reduced in f32 and rounded once, after an average's division. So results are bit-identical from run to run
//     and between algorithms (hierarchical ones and trees, which need --reassociate, excepted). See Reduction for what reductions
//     do, and reduces() for the element types that they take; others are refused.
//   · Errors: invalid arguments throw Error(refused) before anything is sent; later, a call throws whatever ended its wait, as a
//     rule the first failure of the job.
#pragma once

#include "tsprun/types.h"
#include "tsprun/work.h"

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tsprun {

namespace detail {
struct CommunicatorState;
}

/// Source of a recv that takes a message of any other rank of the group.
inline constexpr int kAnySource = -1;
/// Tag of messages without a tag.
inline constexpr std::int32_t kNoTag = -1;
/// Tag of a recv that takes a message with any tag.
inline constexpr std::int32_t kAnyTag = -2;

/// The message that a recv has taken.
struct MessageInfo {
  int source = kAnySource;    ///< rank of the group that sent it
  std::int32_t tag = kNoTag;  ///< its tag
};

/// How a communicator's operations are kept apart from those of others. Messages with a tag are apart in either case.
///
/// - streams: by CallOptions::stream. Ranks that share several communicators call the operations of one stream in one order
/// - own: they are apart from all others. Their stream is ignored: a communicator's operations run in the order of its calls, and
///   ranks may call those of different communicators in different orders. A message costs more: headers of 40 B, above 8 KiB a
///   round trip, and nothing is read in place
enum class Channel : std::uint8_t { streams, own };

/// Options of one call. All ranks of the group must agree on `stream` and `algorithm`.
struct CallOptions {
  Stream stream = Stream::control;   ///< operations of one stream run in order; different streams are independent of each other
  Purpose purpose = Purpose::other;  ///< the traffic counter to which the call's bytes are added
  /// Overrides the choice table for this call. An algorithm that the operation doesn't have, or that can't run on this group, is
  /// refused. A group of one rank has nothing to move and takes any that the operation has.
  Algorithm algorithm = Algorithm::automatic;
  /// Tag of the message: the one that a send gives it, 0 or larger, or the one that a recv wants. See send().
  std::int32_t tag = kNoTag;
  /// Place where a recv notes which message it took; null: nowhere. It is written before the recv is complete, and must exist
  /// until then.
  MessageInfo* received = nullptr;
};

/// Collectives and messages among a group of ranks: Context::world(), or made of another communicator by subgroup() or split().
/// Cheap to move, not copyable; a communicator that was moved from may only be destroyed or assigned to. Used by one thread at a
/// time, the rank's, and not after the context is gone. Posted operations go on when their communicator is destroyed.
class Communicator {
 public:
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  /// Returns this rank's place in the group, from 0.
  int rank() const;
  /// Returns the number of ranks in the group.
  int size() const;
  /// Returns the world rank of a member. Precondition: 0 ≤ group_rank < size().
  int world_rank(int group_rank) const;
  /// Returns the world ranks of all members, in group order; valid as long as the communicator.
  std::span<const int> members() const;

  /// Returns the algorithm that the choice table gives for this operation on this group. `bytes`: size of the whole buffer, n
  /// chunks where an operation has chunks, as `bench` counts it.
  Algorithm algorithm(Op op, std::size_t bytes) const;
  /// Returns the reason why this operation can't use the hierarchical algorithm on this group; empty if it can. A call that asks
  /// for it nevertheless is refused.
  std::string why_not_hierarchical(Op op) const;

  /// Makes a communicator of some members, given as distinct ranks of this group in the order of the new group, this rank among
  /// them. Sends no message. Every member of the new group must call it with the same list; ranks outside the list must not call
  /// it. Ranks that make several groups of one list make them in the same order. All members pass the same `channel`. Throws
  /// Error(refused) if the list is invalid.
  Communicator subgroup(std::span<const int> group_ranks, Channel channel = Channel::streams) const;
  /// Splits the group as MPI_Comm_split does: ranks with equal colour form a new group, ordered by key, then by rank. Collective:
  /// all ranks of the group must call it. It is an all_gather on Stream::control and blocks until that is complete, so it also
  /// waits for what this rank posted on that stream before.
  Communicator split(int colour, int key);

  // In all operations, counts and offsets are in elements of the buffers' dtype; n = size(), p = rank().

  /// Copies root's buffer to the buffers of all other ranks.
  void broadcast(Buffer buffer, int root, CallOptions options = {});
  Work post_broadcast(Buffer buffer, int root, CallOptions options = {});

  /// Concatenates the send buffers [count] of all ranks, in rank order, into recv [n·count] on every rank.
  void all_gather(ConstBuffer send, Buffer recv, CallOptions options = {});
  Work post_all_gather(ConstBuffer send, Buffer recv, CallOptions options = {});
  /// Does an all_gather of chunks of different sizes: chunk r of recv comes from rank r and has counts[r] elements (possibly 0);
  /// send has counts[p]. Chunks lie one after another in recv.
  void all_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, CallOptions options = {});
  Work post_all_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, CallOptions options = {});
  /// Does the same with chunk r at element offsets[r] of recv. Chunks may lie in any order and with gaps, which stay untouched,
  /// but must lie within recv and not overlap; the offset of an empty chunk is ignored. Each rank may use different offsets.
  void all_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, std::span<const std::size_t> offsets,
                    CallOptions options = {});
  Work post_all_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, std::span<const std::size_t> offsets,
                         CallOptions options = {});

  /// Reduces the send buffers [n·count] of all ranks element by element; rank p gets chunk p of the result in recv [count].
  void reduce_scatter(ConstBuffer send, Buffer recv, Reduction reduction, CallOptions options = {});
  Work post_reduce_scatter(ConstBuffer send, Buffer recv, Reduction reduction, CallOptions options = {});
  /// Does a reduce_scatter of chunks of different sizes: chunk r of send has counts[r] elements (possibly 0), and its reduction
  /// goes to rank r, so recv has counts[p]. Chunks lie one after another in send.
  void reduce_scatter_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, Reduction reduction,
                        CallOptions options = {});
  Work post_reduce_scatter_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, Reduction reduction,
                             CallOptions options = {});
  /// Does the same with chunk r at element offsets[r] of send; the rules of all_gather_v with offsets apply.
  void reduce_scatter_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, std::span<const std::size_t> offsets,
                        Reduction reduction, CallOptions options = {});
  Work post_reduce_scatter_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts,
                             std::span<const std::size_t> offsets, Reduction reduction, CallOptions options = {});

  /// Reduces the send buffers of all ranks element by element into recv, on every rank. send and recv have the same count.
  void all_reduce(ConstBuffer send, Buffer recv, Reduction reduction, CallOptions options = {});
  /// Does the same in place.
  void all_reduce(Buffer buffer, Reduction reduction, CallOptions options = {}) {
    all_reduce(buffer, buffer, reduction, options);
  }
  Work post_all_reduce(ConstBuffer send, Buffer recv, Reduction reduction, CallOptions options = {});

  /// Reduces the send buffers of all ranks element by element into recv on root; elsewhere recv is ignored and may be empty.
  void reduce(ConstBuffer send, Buffer recv, Reduction reduction, int root, CallOptions options = {});
  Work post_reduce(ConstBuffer send, Buffer recv, Reduction reduction, int root, CallOptions options = {});

  /// Sends chunk r of send [n·count] to rank r, which gets it as chunk p of its recv [n·count]. send and recv must not overlap.
  void all_to_all(ConstBuffer send, Buffer recv, CallOptions options = {});
  Work post_all_to_all(ConstBuffer send, Buffer recv, CallOptions options = {});
  /// Sends send_counts[r] elements to rank r and receives recv_counts[r] from it, for every r. Chunks lie one after another.
  void all_to_all_v(ConstBuffer send, std::span<const std::size_t> send_counts, Buffer recv,
                    std::span<const std::size_t> recv_counts, CallOptions options = {});
  Work post_all_to_all_v(ConstBuffer send, std::span<const std::size_t> send_counts, Buffer recv,
                         std::span<const std::size_t> recv_counts, CallOptions options = {});

  /// Concatenates the send buffers [count] of all ranks, in rank order, into recv [n·count] on root; elsewhere recv is ignored.
  void gather(ConstBuffer send, Buffer recv, int root, CallOptions options = {});
  Work post_gather(ConstBuffer send, Buffer recv, int root, CallOptions options = {});
  /// Does a gather of chunks of different sizes: rank r sends counts[r] elements (possibly 0). All ranks give all counts.
  void gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, int root, CallOptions options = {});
  Work post_gather_v(ConstBuffer send, Buffer recv, std::span<const std::size_t> counts, int root, CallOptions options = {});
  /// Sends chunk r of root's send [n·count] to rank r, which gets it in recv [count]; elsewhere send is ignored.
  void scatter(ConstBuffer send, Buffer recv, int root, CallOptions options = {});
  Work post_scatter(ConstBuffer send, Buffer recv, int root, CallOptions options = {});
  /// Does a scatter of chunks of different sizes: rank r receives counts[r] elements (possibly 0). All ranks give all counts.
  void scatter_v(ConstBuffer send, std::span<const std::size_t> counts, Buffer recv, int root, CallOptions options = {});
  Work post_scatter_v(ConstBuffer send, std::span<const std::size_t> counts, Buffer recv, int root, CallOptions options = {});

  /// Sends a message to rank `to`. A send is complete when the buffer may be reused. A rank can't send to itself.
  /// If `to` has left the job before, the send fails as a recv from it does: with Error(exited), or killed. A small message is
  /// complete before anybody takes it; if nobody does, the job ends with Error(mismatch) when both ranks have finished. Over RDMA
  /// the first ones of a stream to a peer leave once both ranks have entered the library after they were sent.
  ///
  /// Without a tag, the k-th send to a peer on a stream is matched by that peer's k-th recv from this rank on the same stream,
  /// with equal count and dtype. That is the fastest way.
  ///
  /// With a tag, a recv takes the first message of the group that has its source and its tag and that no earlier recv has taken,
  /// whatever came before; kAnySource and kAnyTag fit all. Such messages belong to no stream (CallOptions::stream is ignored):
  /// they, and the recvs that are posted at once, wait neither for each other nor for anything else. A message without a tag
  /// is for recvs without a tag alone. While a rank waits in any operation, at least 32 and up to 64 messages of up to 8 KiB of
  /// each sender are stored until a recv takes them. What goes beyond that, or is larger, stays with its sender, whose send is
  /// complete when a recv has taken it: it can't be received after a barrier that the sender is to reach first. Count and dtype
  /// must be equal, or the job ends with Error(mismatch).
  void send(ConstBuffer buffer, int to, CallOptions options = {});
  Work post_send(ConstBuffer buffer, int to, CallOptions options = {});
  /// Receives a message of rank `from`, or, with a tag, of kAnySource, see send(). CallOptions::received tells which it was.
  void recv(Buffer buffer, int from, CallOptions options = {});
  Work post_recv(Buffer buffer, int from, CallOptions options = {});
  /// Sends and receives at once; neither half waits for the other, so all ranks of a ring may call it on one stream. The two
  /// peers, counts and dtypes may differ. Each half may be matched by a send_recv or by a plain recv or send of the other rank,
  /// in the same order of messages as above; they have no tags. With to == from == rank() it copies. send and recv must not
  /// overlap.
  void send_recv(ConstBuffer send, int to, Buffer recv, int from, CallOptions options = {});
  Work post_send_recv(ConstBuffer send, int to, Buffer recv, int from, CallOptions options = {});

  /// Waits until all ranks of the group have called it.
  void barrier(CallOptions options = {});
  Work post_barrier(CallOptions options = {});

 private:
  friend struct detail::CommunicatorState;
  explicit Communicator(std::shared_ptr<detail::CommunicatorState> state);

  std::shared_ptr<detail::CommunicatorState> state_;  // shared with posted operations, which may outlive the communicator
};

}  // namespace tsprun
