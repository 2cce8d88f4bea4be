// A decorator on the receiving side of any transport that damages or loses messages, or cuts the way from a peer, as the rank's
// Strikes say. It stands below whatever checks payloads (--verify); where the transport itself does (tcp), the damage is done
// below its check. Of a view it hands out a damaged private copy: nobody else's memory is ever touched.
//
// A message that is lost is taken from the lane below when it comes and never handed over; what was to receive it waits for the
// one behind:
//
//   ticket here            1    2    3           3 was lost: who holds it looks at what comes in its place
//                          │    │     ╲
//   ticket below           1    2   3   4        3 goes nowhere
#pragma once

#include "transport/fault/strikes.h"
#include "transport/forwarding_transport.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace tsprun::fault {

class DamageTransport final : public ForwardingTransport {
 public:
  /// `worlds[p]`: which rank of the world peer p is. `inner` and `strikes` must outlive it.
  DamageTransport(Transport& inner, Strikes& strikes, std::vector<int> worlds)
      : ForwardingTransport(inner), strikes_(&strikes), worlds_(std::move(worlds)) {}

  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override;
  Ticket receive_put(LaneId lane, const Envelope& envelope, std::span<const std::byte> where) override;
  Ticket view(LaneId lane, const Envelope& envelope, std::size_t bytes) override;
  Outcome test_receive(LaneId lane, Ticket ticket) override;
  std::span<const std::byte> access(LaneId lane, Ticket ticket, std::size_t offset, std::size_t bytes) override;
  void release(LaneId lane, Ticket ticket) override;
  Found found(LaneId lane) const override;

 private:
  struct Lost {
    Ticket instead;  ///< ticket here of what waits for the message behind
    Ticket below;
    bool is_view;
    bool taken = false;
  };
  struct Damaged {
    std::byte* bytes;  ///< null: a view
    std::size_t byte;  ///< which one of the message
    std::byte flip;
    std::vector<std::byte> copy;  ///< of a view: as long as the message
  };
  struct Lane {
    std::vector<Lost> lost;
    bool losing = false;  ///< lost.back() is posted below, what waits instead of it isn't yet
    std::map<Ticket, Damaged> damaged;

    Ticket below(Ticket ticket) const;
  };
  using Key = std::pair<int, Stream>;

  int world(int peer) const { return worlds_[static_cast<std::size_t>(peer)]; }
  template <class Post>
  Ticket expect(LaneId lane, const Envelope& envelope, std::byte* where, std::size_t bytes, const Post& post);
  Outcome take_lost(Lane& here, LaneId lane, Ticket ticket);

  Strikes* strikes_;
  std::vector<int> worlds_;
  std::map<Key, Lane> lanes_;  ///< those on which anything was struck
};

}  // namespace tsprun::fault
