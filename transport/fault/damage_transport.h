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
#include "transport/payload_check.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace tsprun::detail::fault {

/// Damages payloads below the check of a transport that checks them itself: decorates that check.
class DamagedArrivals final : public PayloadCheck {
 public:
  /// Chooses a bit of a message, `flip` of its byte `byte`, which will be flipped before it is checked. Call it before the
  /// message's receive is posted.
  void damage(LaneId lane, Ticket ticket, std::size_t byte, std::byte flip) { chosen_[{lane, ticket}] = {byte, flip}; }

  bool is_whole(LaneId lane, Ticket ticket, std::uint64_t at, std::span<std::byte> payload, std::uint64_t hash) override {
    const auto chosen = chosen_.find({lane, ticket});
    if (chosen != chosen_.end() && chosen->second.byte >= at && chosen->second.byte - at < payload.size()) {
      payload[chosen->second.byte - at] ^= chosen->second.flip;
      chosen_.erase(chosen);
    }
    return PayloadCheck::is_whole(lane, ticket, at, payload, hash);
  }

 private:
  struct Bit {
    std::size_t byte = 0;
    std::byte flip{};
  };
  std::map<std::pair<LaneId, Ticket>, Bit> chosen_;
};

/// Carries out a rank's Strikes of kind corrupt and drop, and its cuts.
class DamageTransport final : public ForwardingTransport {
 public:
  /// Wraps `inner`. `worlds[p]` is the world's rank of peer p. `arrivals` is the check that `inner` was made with; it is used
  /// only if `inner` checks payloads itself. All three must outlive this object.
  DamageTransport(Transport& inner, Strikes& strikes, std::vector<int> worlds, DamagedArrivals& arrivals)
      : ForwardingTransport(inner), strikes_(&strikes), worlds_(std::move(worlds)), arrivals_(&arrivals) {}

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
    Ticket last = 0;  ///< newest ticket below
    std::vector<Lost> lost;
    bool losing = false;  ///< lost.back() is posted below, the receive that replaces it isn't yet
    std::map<Ticket, Damaged> damaged;

    Ticket below(Ticket ticket) const;
  };

  int world(int peer) const { return worlds_[static_cast<std::size_t>(peer)]; }
  template <class Post>
  Ticket expect(LaneId lane, const Envelope& envelope, std::byte* where, std::size_t bytes, const Post& post);
  Outcome take_lost(Lane& here, LaneId lane, Ticket ticket);

  Strikes* strikes_;
  std::vector<int> worlds_;
  DamagedArrivals* arrivals_;
  std::map<LaneId, Lane> lanes_;  ///< lanes on which something was received
};

}  // namespace tsprun::detail::fault
