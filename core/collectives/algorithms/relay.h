// A relay moves parts of a buffer through a group: as soon as a rank has a piece of a part, because the part was its own or
// because the piece has arrived, it forwards the piece to the peers that expect it from this rank. With it, an algorithm that
// only moves bytes is a table: which parts go from which rank to which, in which order.
#pragma once

#include "core/collectives/exchange.h"

#include <boost/container/small_vector.hpp>
#include <boost/container/static_vector.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail {

/// Condition that this rank has received all parts of a buffer and forwarded them. Call send_to() and expect_from() for each peer
/// before the first poll().
class Relay {
 private:
  /// Few parts and peers, those of one node of eight GPUs, lie within the relay: it is made for every operation.
  template <class T>
  using Few = boost::container::small_vector<T, 8>;

 public:
  /// A part of the buffer, in bytes. Parts don't overlap; an empty part is sent as an empty message.
  struct Part {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  /// Segments into which engines in virtual time cut a large part: many, so that all nodes of a chain soon pass it on; few, if
  /// links carry other parts meanwhile.
  static constexpr std::size_t kSegmentsOfOne = 16;
  static constexpr std::size_t kSegmentsAmongOthers = 2;

  using Parts = Few<Part>;
  using Order = Few<int>;

  /// Makes a relay of a buffer, in which the parts have their final places on this rank. `segments`: see above.
  /// Throws Error(out_of_memory).
  Relay(Collective& me, std::span<std::byte> buffer, Parts parts, std::size_t segments);
  /// Sends these parts (indices) to `peer`, in this order. The peer must expect the same parts in the same order.
  void send_to(int peer, Order parts);
  /// Expects these parts from `peer`, in this order. Each part is expected from at most one peer.
  void expect_from(int peer, Order parts);
  /// Tells that the first `bytes` of a part are in the buffer already and need not arrive.
  void give(int part, std::size_t bytes);

  /// Copies and sends as much as the budget and lanes allow.
  bool poll();
  /// Returns the condition that no peer reads the buffer any more.
  auto drained() { return offer_.drained(); }

 private:
  /// Number of receives that are posted ahead, so that a sender that needs the receiver's grant doesn't have to wait for it.
  static constexpr std::size_t kAskedAhead = 4;

  /// A walk over the pieces of a peer's parts, in order; each is a message.
  struct Walk {
    std::size_t part = 0;   // index in the peer's `parts`
    std::size_t piece = 0;  // index within that part
    std::uint32_t message = 0;
  };
  struct RelayedSend {
    int peer = -1;
    Order parts;
    Walk next{};
  };
  struct RelayedReceive {
    int peer = -1;
    Order parts;
    Walk next{};  // to be asked for
    Walk arriving{};
    boost::container::static_vector<Arrival, kAskedAhead> arrivals{};  // asked for, in order
  };

  std::size_t pieces(const Part& part) const;
  Part piece_of(const Part& part, std::size_t piece) const;
  const Part& part_of(int part) const { return parts_[static_cast<std::size_t>(part)]; }
  void advance(Walk& walk, const Order& of) const;
  void have(int part, std::size_t pieces);
  bool prepare();
  bool pass_on();
  bool collect(bool& moved);
  void ask(RelayedReceive& incoming);

  Collective& me_;
  std::span<std::byte> buffer_;
  Parts parts_;
  std::size_t piece_bytes_;
  Few<std::size_t> have_;      // by part: number of pieces that are here
  Few<std::size_t> prepared_;  // by part: number of pieces that may be sent
  Few<int> fresh_;             // parts with pieces that are here and may not be sent yet, in order
  Few<bool> leaves_;           // by part: true if it is forwarded
  Few<RelayedSend> outgoing_;
  Few<RelayedReceive> incoming_;
  Offer offer_;
  Landing landing_;
};

}  // namespace tsprun::detail
