// A decorator that checks every payload from end to end (--verify). The XXH3 hash of each payload goes ahead of it, as a
// message of its own on the same lane; the receiving side compares it with the hash of the bytes that it is about to hand over,
// whether they were received or viewed. A view is hashed when it arrives, and hands out exactly the bytes that were
// hashed; so this decorator stands outside of any that gives out private copies.
//
//   sender                          lane                        receiver
//   hash the payload    ── announcement: hash, bytes ──▶        16 bytes, kept here
//   send                ── payload, unchanged ────────▶         into its place, or viewed; hashed; compared
//
// Message t of a lane becomes messages 2t−1 and 2t of the lane below. Either both ends are decorated or neither. Announcements
// are counted as Purpose::none, so reported traffic is that of the payloads alone.
#pragma once

#include "transport/forwarding_transport.h"

#include <array>
#include <cstdint>
#include <deque>
#include <map>

namespace tsprun::detail::verify {

/// Checks every payload that arrives; the outcome of a damaged one is `corrupt`.
class VerifyTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  bool checks_payloads() const override { return true; }
  Ticket send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload, Delivery delivery) override;
  Outcome test_send(LaneId lane, Ticket ticket) override { return inner().test_send(lane, 2 * ticket); }
  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override;
  Ticket view(LaneId lane, const Envelope& envelope, std::size_t bytes) override;
  Outcome test_receive(LaneId lane, Ticket ticket) override;
  std::span<const std::byte> access(LaneId lane, Ticket ticket, std::size_t offset, std::size_t bytes) override;
  void release(LaneId lane, Ticket ticket) override;
  Found found(LaneId lane) const override;

 private:
  /// Message that goes ahead of a payload. 16 bytes on any wire.
  struct Announcement {
    std::uint64_t hash;
    std::uint64_t bytes;
  };
  static_assert(sizeof(Announcement) == 16);

  struct VerifiedSend {
    Ticket last = 0;
    bool announced = false;  ///< message last + 1 was announced, but its payload found no credit yet
  };
  struct Expected {
    Envelope envelope;
    const std::byte* bytes = nullptr;  ///< where the payload lies once it has arrived
    std::size_t count = 0;
    bool is_view = false;
    bool checked = false;
    bool finished = false;
    Announcement announcement{};
  };
  struct VerifiedReceive {
    Ticket first = 1;  ///< ticket of expected.front()
    std::deque<Expected> expected;
    bool announced = false;  ///< the receive of expected.back()'s payload isn't posted below yet
    bool damaged = false;
    Found found;
  };

  bool announce(VerifiedSend& out, LaneId lane, const Envelope& envelope, std::span<const std::byte> payload);
  static Ticket sent(VerifiedSend& out, Ticket below);
  bool expect_announcement(VerifiedReceive& in, LaneId lane, const Expected& expected);
  static Ticket posted(VerifiedReceive& in, Ticket below);
  Outcome check(VerifiedReceive& in, LaneId lane, Ticket ticket, Expected& expected);
  static void finish(VerifiedReceive& in, Expected& expected);

  std::map<LaneId, VerifiedSend> outgoing_;
  std::map<LaneId, VerifiedReceive> incoming_;
};

}  // namespace tsprun::detail::verify
