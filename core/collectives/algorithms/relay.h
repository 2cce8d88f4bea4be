// A relay moves parts of a buffer through a group: as soon as a rank has a piece of a part, because the part was its own or
// because the piece has arrived, it forwards the piece to the peers that expect it from this rank. With it, an algorithm that
// only moves bytes is a table: which parts go from which rank to which, in which order.
#pragma once

#include "core/collectives/exchange.h"

#include <boost/container/static_vector.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun::detail {

/// Condition that this rank has received all parts of a buffer and forwarded them. Call send_to() and expect_from() for each peer
/// before the first poll().
class Relay {
 public:
  /// A part of the buffer, in bytes. Parts don't overlap; an empty part is sent as an empty message.
  struct Part {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  /// Makes a relay of a buffer, in which the parts have their final places on this rank. Throws Error(out_of_memory).
  Relay(Collective& me, std::span<std::byte> buffer, std::vector<Part> parts);
  /// Sends these parts (indices) to `peer`, in this order. The peer must expect the same parts in the same order.
  void send_to(int peer, std::vector<int> parts);
  /// Expects these parts from `peer`, in this order. Each part is expected from at most one peer.
  void expect_from(int peer, std::vector<int> parts);
  /// Tells that the first `bytes` of a part are in the buffer already and need not arrive.
  void give(int part, std::size_t bytes);

  /// Copies and sends as much as the budget and lanes allow.
  bool poll();
  /// Returns the condition that no peer reads the buffer any more.
  auto drained() { return offer_.drained(); }

 private:
  /// Number of receives that are posted ahead, so that a sender that needs the receiver's grant doesn't have to wait for it.
  static constexpr std::size_t kAskedAhead = 4;

  /// A walk over the pieces of some parts, in order; each is a message.
  struct Walk {
    std::vector<int> parts;
    std::size_t part = 0;   // index in `parts`
    std::size_t piece = 0;  // index within that part
    std::uint32_t message = 0;
  };
  struct RelayedSend {
    int peer = -1;
    Walk next;
  };
  struct RelayedReceive {
    int peer = -1;
    Walk next;  // to be asked for
    Walk arriving;
    boost::container::static_vector<Arrival, kAskedAhead> arrivals;  // asked for, in order
  };

  static std::size_t pieces(const Part& part);
  static Part piece_of(const Part& part, std::size_t piece);
  bool at_end(const Walk& walk) const { return walk.part == walk.parts.size(); }
  const Part& part_at(const Walk& walk) const { return parts_[static_cast<std::size_t>(walk.parts[walk.part])]; }
  void advance(Walk& walk) const;
  void have(int part, std::size_t pieces);
  bool prepare();
  bool pass_on();
  bool collect(bool& moved);
  void ask(RelayedReceive& incoming);

  Collective& me_;
  std::span<std::byte> buffer_;
  std::vector<Part> parts_;
  std::vector<std::size_t> have_;      // by part: number of pieces that are here
  std::vector<std::size_t> prepared_;  // by part: number of pieces that may be sent
  std::vector<int> fresh_;             // parts with pieces that are here and may not be sent yet, in order
  std::vector<bool> leaves_;           // by part: true if it is forwarded
  std::vector<RelayedSend> outgoing_;
  std::vector<RelayedReceive> incoming_;
  Offer offer_;
  Landing landing_;
};

}  // namespace tsprun::detail
