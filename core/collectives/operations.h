// The algorithms of all collectives but the hierarchical ones: one resumable state machine (a Collective) for each operation and
// algorithm. The communicator has checked their arguments. Words: a *chunk* is one rank's part of the buffer; a *segment* (in
// rings, a *piece*) is the part of a chunk that is passed on at once.
#pragma once

#include "core/collectives/chunks.h"
#include "core/collectives/exchange.h"
#include "tsprun/types.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tsprun::detail {

/// Returns `value` modulo `n` in 0 … n−1, for negative values too: a position on a ring of n.
inline int modulo(int value, int n) { return ((value % n) + n) % n; }

// --- direct: every rank talks to every other ---------------------------------------------------------------------------------

/// all_gather(_v): every rank sends its chunk to all others and copies theirs as they arrive, in any order.
class DirectAllGather final : public Collective {
 public:
  DirectAllGather(const Call& call, ConstBuffer send, Buffer recv, Chunks chunks);
  bool step(Engine& engine) override;

 private:
  ConstBuffer send_;
  Buffer recv_;
  Chunks chunks_;
  Offer offer_;
  SmallVector<Arrival, kInlinePeers> arrivals_;
  Landing landing_;
  int sent_ = 0;
  std::size_t prepared_ = 0;
  std::size_t own_copied_ = 0;
};

/// all_to_all(_v): every rank sends each other rank its chunk and copies theirs as they arrive, in any order.
class DirectAllToAll final : public Collective {
 public:
  DirectAllToAll(const Call& call, ConstBuffer send, Chunks send_chunks, Buffer recv, Chunks recv_chunks);
  bool step(Engine& engine) override;

 private:
  ConstBuffer send_;
  Buffer recv_;
  Chunks send_chunks_;
  Chunks recv_chunks_;
  Offer offer_;
  SmallVector<Arrival, kInlinePeers> arrivals_;
  Landing landing_;
  int sent_ = 0;
  std::size_t prepared_ = 0;
  std::size_t own_copied_ = 0;
};

/// broadcast: the root sends the buffer to all others, which copy it.
class DirectBroadcast final : public Collective {
 public:
  DirectBroadcast(const Call& call, Buffer buffer, int root);
  bool step(Engine& engine) override;

 private:
  Buffer buffer_;
  int root_;
  Offer offer_;
  Arrival arrival_;
  Landing landing_;
  int sent_ = 0;
  std::size_t prepared_ = 0;
};

/// Reduces messages of equal size from all other ranks with a local buffer, straight from where the messages lie.
class PeerSum {
 public:
  /// Prepares for messages of `count` elements. Throws Error(out_of_memory).
  void set(const Collective& operation, DType dtype, Reduction reduction, std::size_t count);
  /// Expects the messages of all peers. Returns false if a lane has no credit now; call again.
  bool post(Collective& operation, std::uint32_t step);
  /// Returns true when all messages have arrived.
  bool arrived(Collective& operation, Engine& engine);
  /// Reduces elements [first, first + count) of the messages, in the order of Collective::peer(), and `own` last, and writes the
  /// `count` results to `out`. `own` points to the first of `count` local elements.
  void sum(const Collective& operation, const std::byte* own, std::byte* out, std::size_t first, std::size_t count,
           kernels::Stores stores);
  /// Tells all senders that their messages were read.
  void release(const Collective& operation);

 private:
  DType dtype_ = DType::f32;
  Reduction reduction_ = Reduction::sum;
  std::size_t count_ = 0;
  int posted_ = 0;
  int arrived_ = 0;  // the messages of the first `arrived_` peers are there
  HeapBlock landing_;
  SmallVector<Incoming, kInlinePeers> messages_;
  SmallVector<const std::byte*, kInlinePeers> terms_;
};

/// reduce_scatter(_v): every rank sends chunk q to rank q, for all q, and sums its own chunk straight from the others' memory.
class DirectReduceScatter final : public Collective {
 public:
  DirectReduceScatter(const Call& call, ConstBuffer send, Buffer recv, Chunks chunks);
  bool step(Engine& engine) override;

 private:
  ConstBuffer send_;
  Buffer recv_;
  Chunks chunks_;
  Offer offer_;
  PeerSum sum_;
  int sent_ = 0;
  std::size_t prepared_ = 0;
  std::size_t reduced_ = 0;  // elements of the own chunk that are summed
};

/// all_reduce: a direct reduce_scatter whose result is sent to all others segment by segment, while it is still in the cache. In
/// place it needs no further synchronisation: chunk p of every rank's buffer is read only by rank p, before p sends its result.
class DirectAllReduce final : public Collective {
 public:
  DirectAllReduce(const Call& call, ConstBuffer send, Buffer recv);
  bool step(Engine& engine) override;

 private:
  std::size_t segments(int chunk) const;
  std::span<std::byte> segment(int chunk, std::size_t index) const;
  bool send_inputs(Engine& engine, std::size_t& budget);
  bool reduce_segment(Engine& engine, bool collecting);
  bool send_results();
  bool collect(Engine& engine, std::size_t& budget);
  std::size_t slowest_gather() const;

  /// State of receiving one peer's result.
  struct Gather {
    Arrival arrival;
    std::size_t next = 0;  // index of the segment that is expected
  };

  ConstBuffer send_;
  Buffer recv_;
  Chunks chunks_;
  std::size_t segment_elements_;
  Offer input_;
  Offer result_;
  PeerSum sum_;
  SmallVector<Gather, kInlinePeers> gathers_;
  Landing landing_;
  int input_sent_ = 0;
  std::size_t input_prepared_ = 0;
  std::size_t summed_ = 0;       // segments of the own chunk that are summed
  std::size_t reduced_ = 0;      // segments of the own chunk that may be sent
  std::size_t result_sent_ = 0;  // segments sent to all
  int result_peer_ = 0;          // next peer for segment result_sent_
};

/// reduce: every rank sends its buffer to the root, which sums them.
class DirectReduce final : public Collective {
 public:
  DirectReduce(const Call& call, ConstBuffer send, Buffer recv, int root);
  bool step(Engine& engine) override;

 private:
  bool step_root(Engine& engine);

  ConstBuffer send_;
  Buffer recv_;
  int root_;
  Offer offer_;
  PeerSum sum_;
  bool sent_ = false;
  std::size_t prepared_ = 0;
  std::size_t reduced_ = 0;
};

/// all_reduce in one round: every rank sends its whole buffer to all others and sums all chunks itself, in the same order as the
/// other algorithms.
class OneShotAllReduce final : public Collective {
 public:
  OneShotAllReduce(const Call& call, ConstBuffer send, Buffer recv);
  bool step(Engine& engine) override;

 private:
  void sum_all();

  ConstBuffer send_;
  Buffer recv_;
  Offer offer_;
  SmallVector<Incoming, kInlinePeers> messages_;
  std::array<std::byte, 1024> near_landing_;  // small messages are received here
  HeapBlock far_landing_;
  std::byte* landing_ = nullptr;
  int sent_ = 0;
  int posted_ = 0;
  int arrived_ = 0;
  std::size_t prepared_ = 0;
  bool summed_ = false;
};

/// barrier: every rank sends a message without payload to all others and waits for one from each.
class Barrier final : public Collective {
 public:
  explicit Barrier(const Call& call);
  bool step(Engine& engine) override;

 private:
  Offer offer_;
  SmallVector<Incoming, kInlinePeers> messages_;
  int sent_ = 0;
  int posted_ = 0;
  int arrived_ = 0;
};

// --- rooted: everything passes through rank 0, for large groups --------------------------------------------------------------

/// all_reduce: every rank sends its buffer to rank 0, which sums and sends the result to all others.
class RootedAllReduce final : public Collective {
 public:
  RootedAllReduce(const Call& call, ConstBuffer send, Buffer recv);
  bool step(Engine& engine) override;

 private:
  bool step_root(Engine& engine);
  bool step_other(Engine& engine);
  void sum_chunk(int c);

  ConstBuffer send_;
  Buffer recv_;
  Chunks chunks_;
  Offer offer_;  // the input; on the root, the result
  SmallVector<Incoming, kInlinePeers> messages_;
  HeapBlock landings_;
  Arrival arrival_;
  Landing landing_;
  int sent_ = 0;
  int posted_ = 0;
  int arrived_ = 0;
  int summed_ = 0;  // chunks
  std::size_t prepared_ = 0;
};

/// barrier: every rank sends a message to rank 0, which answers when it has all of them.
class RootedBarrier final : public Collective {
 public:
  explicit RootedBarrier(const Call& call);
  bool step(Engine& engine) override;

 private:
  Offer offer_;
  SmallVector<Incoming, kInlinePeers> messages_;
  int sent_ = 0;
  int posted_ = 0;
  int arrived_ = 0;
};

// --- ring: every rank talks to its two neighbours only -----------------------------------------------------------------------

/// Memory from which partial sums are sent to the right: two slots, so that one is filled while the other is read.
class RingSlots {
 public:
  /// Allocates slots of `bytes` each if `sends`, and a landing if messages from the left can't be viewed. Throws
  /// Error(out_of_memory).
  void set(const Collective& operation, std::size_t bytes, bool sends = true);
  /// Returns true once nobody reads slot `hop` mod 2 any more.
  bool writable(Collective& operation, Engine& engine, std::size_t hop) { return offers_[hop % 2].drained(operation, engine); }
  std::byte* slot(std::size_t hop) const { return memory_[hop % 2].bytes().data(); }
  /// Sends the first `bytes` of slot `hop` mod 2 to the right. Returns false if the lane has no credit now; call again.
  bool send(Collective& operation, std::size_t hop, std::size_t bytes);
  /// Returns true once nobody reads either slot any more.
  bool drained(Collective& operation, Engine& engine) { return writable(operation, engine, 0) && writable(operation, engine, 1); }
  /// Returns the memory into which messages are received that can't be viewed; null if they can.
  std::byte* landing() { return landing_.bytes().data(); }

 private:
  std::array<HeapBlock, 2> memory_;
  std::array<Offer, 2> offers_;
  HeapBlock landing_;
};

/// The ring reduce_scatter: the sum of chunk c starts at rank c+1 and travels to the right, each rank adding its own part, until
/// it arrives at rank c. Chunks are cut into pieces; a round of n−1 hops moves one piece of every chunk.
class RingReducePhase {
 public:
  /// Prepares to reduce `send`, cut into `chunks`, and to write this rank's chunk of the result to `own_result`. Throws
  /// Error(out_of_memory).
  void set(const Collective& operation, ConstBuffer send, Chunks chunks, std::byte* own_result);
  /// Goes as far as it can, as Operation::step(). Returns true when the own chunk is complete and no peer reads this rank's
  /// memory any more.
  bool step(Collective& operation, Engine& engine);
  /// Returns the number of messages that each rank sends; their steps are 0 … hops()-1.
  std::uint32_t hops() const { return static_cast<std::uint32_t>(hops_); }

 private:
  std::size_t piece_count(int chunk) const;
  const std::byte* own_piece(int chunk) const;
  bool hop(Collective& operation, Engine& engine);

  ConstBuffer send_;
  Chunks chunks_ = Chunks::uniform(1, 0);
  std::byte* result_ = nullptr;
  Reduction reduction_ = Reduction::sum;
  std::size_t piece_ = 1;  // elements
  std::size_t hops_ = 0;
  std::size_t hop_ = 0;
  std::size_t round_ = 0;
  int hop_in_round_ = 0;
  bool filled_ = false;
  bool sent_ = false;
  RingSlots slots_;
  Incoming incoming_;
};

/// The ring all_gather: chunks travel to the right in pieces, from each rank's recv to the next one's.
class RingGatherPhase {
 public:
  /// Prepares to gather into `recv`, in which the own chunk lies already when the first step() is called. The steps of messages
  /// count from `first_step`.
  void set(const Collective& operation, Buffer recv, Chunks chunks, std::uint32_t first_step);
  /// Goes as far as it can, as Operation::step(). Returns true when all chunks are in recv and no peer reads it any more.
  bool step(Collective& operation, Engine& engine);

 private:
  std::span<std::byte> piece(int chunk) const;

  Buffer recv_;
  Chunks chunks_ = Chunks::uniform(1, 0);
  std::uint32_t first_step_ = 0;
  std::size_t piece_ = 1;
  std::size_t hops_ = 0;
  std::size_t hop_ = 0;
  std::size_t round_ = 0;
  int hop_in_round_ = 0;
  bool sent_ = false;
  Offer offer_;
  Arrival arrival_;
  Landing landing_;
};

/// reduce_scatter(_v): RingReducePhase alone.
class RingReduceScatter final : public Collective {
 public:
  RingReduceScatter(const Call& call, ConstBuffer send, Buffer recv, Chunks chunks);
  bool step(Engine& engine) override;

 private:
  RingReducePhase reduce_;
};

/// all_gather(_v): copies the own chunk to its place, then RingGatherPhase.
class RingAllGather final : public Collective {
 public:
  RingAllGather(const Call& call, ConstBuffer send, Buffer recv, Chunks chunks);
  bool step(Engine& engine) override;

 private:
  ConstBuffer send_;
  std::span<std::byte> own_place_;
  std::size_t own_copied_ = 0;
  RingGatherPhase gather_;
};

/// all_reduce: RingReducePhase, then RingGatherPhase.
class RingAllReduce final : public Collective {
 public:
  RingAllReduce(const Call& call, ConstBuffer send, Buffer recv);
  bool step(Engine& engine) override;

 private:
  bool reduced_ = false;
  RingReducePhase reduce_;
  RingGatherPhase gather_;
};

/// broadcast: the buffer travels in segments along a chain from the root to the right.
class RingBroadcast final : public Collective {
 public:
  RingBroadcast(const Call& call, Buffer buffer, int root);
  bool step(Engine& engine) override;

 private:
  std::span<std::byte> segment(std::size_t index) const;

  Buffer buffer_;
  bool is_first_;
  bool is_last_;
  std::size_t segments_;
  std::size_t received_ = 0;
  std::size_t sent_ = 0;
  std::size_t prepared_ = 0;  // segments that may be sent
  Offer offer_;
  Arrival arrival_;
  Landing landing_;
};

/// reduce: partial sums travel in pieces along a chain from the root's right neighbour to the root.
class RingReduce final : public Collective {
 public:
  RingReduce(const Call& call, ConstBuffer send, Buffer recv, int root);
  bool step(Engine& engine) override;

 private:
  std::size_t piece_count() const;

  ConstBuffer send_;
  Buffer recv_;
  bool is_first_;
  bool is_root_;
  std::size_t piece_;
  std::size_t pieces_;
  std::size_t done_ = 0;
  bool filled_ = false;
  RingSlots slots_;
  Incoming incoming_;
};

}  // namespace tsprun::detail
