// Parts of a buffer on their way through a group: what a rank has of a part, because it was given or has arrived, it passes on
// piece by piece to those who expect it from here. An algorithm that only moves bytes is a table: which parts go from whom to
// whom, in which order.
#pragma once

#include "core/collectives/exchange.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tsprun {

class Relay {
 public:
  /// A part of the buffer, in bytes. Parts don't overlap; an empty one travels as an empty message.
  struct Part {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  /// `buffer` holds the parts at their final places, on this rank.
  void set(const Collective& operation, std::span<std::byte> buffer, std::vector<Part> parts);
  /// These parts go to `peer`, or come from it, in this order. Both ends must say the same. A part arrives from one peer at most.
  void send_to(int peer, std::vector<int> parts);
  void expect_from(int peer, std::vector<int> parts);
  /// The part's first `bytes` are in the buffer, though they didn't arrive by this relay.
  void give(int part, std::size_t bytes);

  /// True when everything has come and gone, and nobody reads the buffer any more. Moves at most `budget` bytes.
  bool step(Collective& operation, Engine& engine, std::size_t budget);

 private:
  /// Messages asked for ahead, so that a sender that waits for being asked doesn't wait.
  static constexpr std::size_t kAskedAhead = 4;

  /// A walk over the pieces of some parts, in order; each is a message.
  struct Walk {
    std::vector<int> parts;
    std::size_t part = 0;   // index in `parts`
    std::size_t piece = 0;  // of that part
    std::uint32_t message = 0;
  };
  struct Outgoing {
    int peer = -1;
    Walk next;
  };
  struct Incoming {
    int peer = -1;
    Walk next;  // to be asked for
    Walk arriving;
    std::array<Arrival, kAskedAhead> arrivals{};
  };

  static std::size_t pieces(const Part& part);
  static Part piece_of(const Part& part, std::size_t piece);
  bool at_end(const Walk& walk) const { return walk.part == walk.parts.size(); }
  const Part& part_at(const Walk& walk) const { return parts_[static_cast<std::size_t>(walk.parts[walk.part])]; }
  void advance(Walk& walk) const;
  void have(int part, std::size_t pieces);
  bool prepare(Collective& operation);
  bool pass_on(Collective& operation);
  bool collect(Collective& operation, Engine& engine, std::size_t& budget, bool& moved);

  std::span<std::byte> buffer_;
  std::vector<Part> parts_;
  std::vector<std::size_t> have_;      // by part: pieces that are here
  std::vector<std::size_t> prepared_;  // by part: pieces that may be sent
  std::vector<bool> leaves_;           // by part: it is passed on
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  Offer offer_;
  Landing landing_;
  bool all_sent_ = false;
};

}  // namespace tsprun
