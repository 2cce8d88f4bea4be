// A decorator, on the receiving side of any transport, that damages or loses messages or cuts the way from a peer, as the
// rank's Strikes say. It stands below the decorator that checks payloads (--verify); if the transport itself checks them (tcp),
// the damage is done below that check. A damaged view is a private copy: memory of other ranks is never changed.
//
// A lost message is taken from the lane below when it arrives and never handed over. Its receive gets the next message instead:
//
//   ticket here            1    2    3           message 3 is lost: the holder of ticket 3 gets what comes next
//                          │    │     ╲
//   ticket below           1    2   3   4        3 is discarded
#pragma once

#include "transport/fault/strikes.h"
#include "transport/forwarding_transport.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace tsprun::detail::fault {

/// Carries out a rank's Strikes of kind corrupt and drop, and its cuts.
class DamageTransport final : public ForwardingTransport {
 public:
  /// Damages the message that a lane's next receive expects below the transport's own check of payloads. Called again before
  /// that receive, it changes nothing.
  using BelowCheck = std::function<void(LaneId lane)>;

  /// Wraps `inner`. `worlds[p]` is the world's rank of peer p. `below_check`: set if the transport checks payloads itself.
  /// `inner` and `strikes` must outlive this object.
  DamageTransport(Transport& inner, Strikes& strikes, std::vector<int> worlds, BelowCheck below_check = {})
      : ForwardingTransport(inner), strikes_(&strikes), worlds_(std::move(worlds)), below_check_(std::move(below_check)) {}

  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override;
  Ticket view(LaneId lane, const Envelope& envelope, std::size_t bytes) override;
  Outcome test_receive(LaneId lane, Ticket ticket) override;
  std::span<const std::byte> access(LaneId lane, Ticket ticket, std::size_t offset, std::size_t bytes) override;
  void release(LaneId lane, Ticket ticket) override;
  Found found(LaneId lane) const override;

 private:
  struct Lost {
    Ticket instead;  ///< ticket here of the receive that gets the next message instead
    Ticket below;
    bool is_view;
    bool taken = false;
  };
  struct Damaged {
    std::byte* bytes;  ///< the receive's buffer; null: a view
    std::size_t byte;  ///< index of the damaged byte in the message
    std::byte flip;
    std::vector<std::byte> copy;  ///< of a view: the damaged copy, as long as the message
  };
  struct Lane {
    std::vector<Lost> lost;
    bool losing = false;  ///< lost.back() is posted below, the receive that replaces it isn't yet
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
  BelowCheck below_check_;
  std::map<Key, Lane> lanes_;  ///< lanes on which a message was struck
};

}  // namespace tsprun::detail::fault
