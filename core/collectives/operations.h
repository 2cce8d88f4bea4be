// The algorithms of what a group does together: a resumable state machine for each operation and each way to do it. Their
// arguments were checked by the communicator. Words: a *chunk* is one rank's part of the buffer, a *segment* (or, in rings, a
// *piece*) what is passed on at once.
#pragma once

#include "core/collectives/chunks.h"
#include "core/collectives/exchange.h"
#include "core/tensor/dtype.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tsprun {

/// `value` modulo `n`, in 0…n−1 for negative values too: places on a ring of n.
inline int modulo(int value, int n) { return ((value % n) + n) % n; }

// --- direct: every rank talks to every other ---------------------------------------------------------------------------------

/// Everyone offers its chunk to all, and copies the others'.
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

/// Each rank has another chunk for every other.
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

/// The root offers to all; the others copy.
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

/// Messages of the same size from all other ranks, summed with an own buffer straight from where they lie.
class PeerSum {
 public:
  void set(const Collective& operation, DType dtype, Reduction reduction, std::size_t count);
  /// Expects the peers' messages; false: call again.
  bool post(Collective& operation, std::uint32_t step);
  /// True when all are there.
  bool arrived(Collective& operation, Engine& engine);
  /// out[first, first+count) = sum over ranks in the order of peers, `own` last.
  void sum(const Collective& operation, const std::byte* own, std::byte* out, std::size_t first, std::size_t count,
           kernels::Stores stores);
  void release(const Collective& operation);

 private:
  DType dtype_ = DType::f32;
  Reduction reduction_ = Reduction::sum;
  std::size_t count_ = 0;
  int posted_ = 0;
  int arrived_ = 0;  // the first so many peers' messages are there
  HeapBlock landing_;
  SmallVector<Incoming, kInlinePeers> messages_;
  SmallVector<const std::byte*, kInlinePeers> terms_;
};

/// Everyone offers chunk q to rank q, and sums its own chunk straight from the others' memory.
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
  std::size_t reduced_ = 0;  // elements of the own chunk
};

/// A direct reduce_scatter whose result is passed on segment by segment, while it is still in the cache. In place needs no
/// further synchronisation: chunk p of anyone's buffer is read by rank p alone, before p's result is offered.
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

  /// What has come of one peer's result.
  struct Gather {
    Arrival arrival;
    std::size_t next = 0;  // segment that is expected
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
  std::size_t summed_ = 0;       // segments of the own chunk
  std::size_t reduced_ = 0;      // those of them that may be sent
  std::size_t result_sent_ = 0;  // segments sent to all
  int result_peer_ = 0;          // next peer for segment result_sent_
};

/// Everyone sends everything to the root, which sums.
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

/// all_reduce in one round: everyone sends everything to all and sums all chunks itself, in the same order as the other
/// algorithms.
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

/// A message without payload to all others, and one from each.
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

// --- rooted: everything by way of rank 0, for large groups -------------------------------------------------------------------

/// Everyone sends everything to rank 0, which sums and sends the result to all.
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
  Offer offer_;  // of the input, or, at the root, of the result
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

/// A message from all to rank 0, and one back when all have come.
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

/// Memory from which partial sums are sent on: two slots, so that one is filled while the other is read.
class RingSlots {
 public:
  /// Slots of `bytes` each; without `sends` none, only a landing.
  void set(const Collective& operation, std::size_t bytes, bool sends = true);
  /// True once nobody reads slot `hop` mod 2 any more; false: call again.
  bool writable(Collective& operation, Engine& engine, std::size_t hop) { return offers_[hop % 2].drained(operation, engine); }
  std::byte* slot(std::size_t hop) const { return memory_[hop % 2].bytes().data(); }
  /// Sends the first `bytes` of slot `hop` mod 2 to the right; false: call again.
  bool send(Collective& operation, std::size_t hop, std::size_t bytes);
  bool drained(Collective& operation, Engine& engine) { return writable(operation, engine, 0) && writable(operation, engine, 1); }
  /// Where messages land that can't be viewed.
  std::byte* landing() { return landing_.bytes().data(); }

 private:
  std::array<HeapBlock, 2> memory_;
  std::array<Offer, 2> offers_;
  HeapBlock landing_;
};

/// The reduce_scatter of a ring: the sum of chunk c starts at rank c+1 and travels to the right, every rank adding its own part,
/// until it arrives at rank c. Chunks are cut into pieces; a round of n−1 hops moves one piece of every chunk.
class RingReducePhase {
 public:
  void set(const Collective& operation, ConstBuffer send, Chunks chunks, std::byte* own_result);
  /// True when the own chunk is complete and nobody reads our memory any more.
  bool step(Collective& operation, Engine& engine);
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

/// The all_gather of a ring: chunks travel to the right, from recv to recv, in pieces.
class RingGatherPhase {
 public:
  /// The own chunk lies in recv already. Tags count from `first_step`.
  void set(const Collective& operation, Buffer recv, Chunks chunks, std::uint32_t first_step);
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

class RingReduceScatter final : public Collective {
 public:
  RingReduceScatter(const Call& call, ConstBuffer send, Buffer recv, Chunks chunks);
  bool step(Engine& engine) override;

 private:
  RingReducePhase reduce_;
};

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

class RingAllReduce final : public Collective {
 public:
  RingAllReduce(const Call& call, ConstBuffer send, Buffer recv);
  bool step(Engine& engine) override;

 private:
  bool reduced_ = false;
  RingReducePhase reduce_;
  RingGatherPhase gather_;
};

/// A chain from the root to the right; segments follow each other.
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
  std::size_t prepared_ = 0;  // segments
  Offer offer_;
  Arrival arrival_;
  Landing landing_;
};

/// A chain from the root's right neighbour to the root; partial sums follow each other.
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

}  // namespace tsprun
