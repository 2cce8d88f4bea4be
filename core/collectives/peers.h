// Messages to and from all peers, for algorithms in which every rank talks to every other. Each class is a condition that a task
// can wait for.
#pragma once

#include "core/collectives/exchange.h"

#include <cstddef>
#include <cstdint>

namespace tsprun::detail {

/// Sends each peer its part of an offer's memory, as far as lanes have credit: the condition that all are sent.
class SendToPeers {
 public:
  /// Sends all peers the same `bytes` bytes, the first of the memory, which are prepared().
  SendToPeers(Collective& me, Offer& offer, std::uint32_t step, std::size_t bytes)
      : me_(me), offer_(offer), step_(step), bytes_(bytes) {}
  /// Prepares and sends each peer's chunk, one after another, so that the first peer needn't wait until all are prepared; this
  /// rank's own is left out. `chunks` is borrowed.
  SendToPeers(Collective& me, Offer& offer, std::uint32_t step, const Chunks& chunks, std::size_t element_bytes)
      : me_(me), offer_(offer), step_(step), bytes_(element_bytes), chunks_(&chunks) {}
  bool poll();

 private:
  Collective& me_;
  Offer& offer_;
  std::uint32_t step_;
  std::size_t bytes_;  // of the payload or, with chunks, of an element
  const Chunks* chunks_ = nullptr;
  int sent_ = 0;
  bool prepared_ = false;  // the next peer's chunk
};

/// Condition that messages of equal size have arrived from all peers.
class PeerMessages {
 public:
  /// Expects messages of `bytes`. `landing`: room for all of them, one after another; null if all peers' memory can be viewed.
  /// See Message for the rest.
  PeerMessages(Collective& me, std::uint32_t step, std::size_t bytes, std::byte* landing,
               std::size_t receive_up_to = kReceivedBytes);
  bool poll();
  /// Asks for all messages, as far as lanes have credit.
  void ask();
  /// Returns the message of the i-th peer, see Collective::peer().
  const Message& operator[](int i) const { return messages_[static_cast<std::size_t>(i)]; }
  /// Tells all senders that their messages were read.
  void release();

 private:
  PerPeer<Message> messages_;
  bool shares_cores_;
  std::size_t asked_ = 0;
  std::size_t arrived_ = 0;  // the first `arrived_` messages are there
};

/// Messages of equal size from all peers, which are reduced with a local buffer straight from where they lie.
class PeerSum {
 public:
  /// Expects messages of `count` elements. Throws Error(out_of_memory).
  PeerSum(Collective& me, DType dtype, std::size_t count, std::uint32_t step);
  /// Returns true when all messages have arrived.
  bool poll() { return messages_.poll(); }
  void ask() { messages_.ask(); }
  /// Reduces elements [first, first + count) of the messages, in the order of Collective::peer(), and `own` last, and writes the
  /// `count` results to `out`. `own` points to the first of `count` local elements.
  void sum(const std::byte* own, std::byte* out, std::size_t first, std::size_t count, kernels::Stores stores);
  /// Tells all senders that their messages were read.
  void release() { messages_.release(); }
  DType dtype() const { return dtype_; }
  std::size_t count() const { return count_; }

 private:
  Collective& me_;
  DType dtype_;
  std::size_t count_;
  HeapBlock landing_;
  PeerMessages messages_;
  PerPeer<const std::byte*> terms_;
};

/// Condition that all elements of messages that have arrived are summed. Sums some at a time, and tells the senders in the end.
class SumAll {
 public:
  /// Sums into `out`; `own` is this rank's part. Both point to the first element.
  SumAll(Collective& me, PeerSum& sum, const std::byte* own, std::byte* out) : me_(me), sum_(sum), own_(own), out_(out) {}
  bool poll();

 private:
  Collective& me_;
  PeerSum& sum_;
  const std::byte* own_;
  std::byte* out_;
  std::size_t summed_ = 0;
};

/// Condition that all chunks are in place. Copies each peer's chunk as it arrives, and this rank's own.
class GatherChunks {
 public:
  /// Gathers into `recv`; `own` is this rank's chunk. `chunks` is borrowed.
  GatherChunks(Collective& me, Buffer recv, const Chunks& chunks, const std::byte* own);
  bool poll();

 private:
  Collective& me_;
  Landing landing_;
  PerPeer<Arrival> arrivals_;
  LocalCopy own_;
  bool own_copied_ = false;
};

}  // namespace tsprun::detail
