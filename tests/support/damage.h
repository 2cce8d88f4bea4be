// A way on which one payload is damaged: a byte of it differs when it arrives, as a faulty adapter or memory would do.
#pragma once

#include "transport/forwarding_transport.h"

#include <cstddef>
#include <map>
#include <vector>

namespace tsprun::detail::test {

/// Damages, on the receiving side, message `ticket` of every lane. Of a view it hands out a damaged private copy.
class DamagingTransport final : public ForwardingTransport {
 public:
  DamagingTransport(Transport& inner, Ticket ticket, std::size_t byte = 0)
      : ForwardingTransport(inner), ticket_(ticket), byte_(byte) {}

  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override {
    return note(lane, inner().receive(lane, envelope, into), into);
  }
  Outcome test_receive(LaneId lane, Ticket ticket) override {
    const Outcome outcome = inner().test_receive(lane, ticket);
    if (outcome != Outcome::done || ticket != ticket_) return outcome;
    const auto found = places_.find(lane);
    if (found != places_.end() && byte_ < found->second.size()) found->second[byte_] ^= std::byte{0x10};
    if (found != places_.end()) places_.erase(found);
    return outcome;
  }
  std::span<const std::byte> access(LaneId lane, Ticket ticket, std::size_t offset, std::size_t bytes) override {
    const std::span<const std::byte> payload = inner().access(lane, ticket, offset, bytes);
    if (ticket != ticket_ || byte_ < offset || byte_ >= offset + bytes) return payload;
    std::vector<std::byte>& copy = copies_[lane];
    copy.assign(payload.begin(), payload.end());
    copy[byte_ - offset] ^= std::byte{0x10};
    return copy;
  }

 private:
  Ticket note(LaneId lane, Ticket ticket, std::span<std::byte> place) {
    if (ticket == ticket_) places_[lane] = place;
    return ticket;
  }

  Ticket ticket_;
  std::size_t byte_;
  std::map<LaneId, std::span<std::byte>> places_;
  std::map<LaneId, std::vector<std::byte>> copies_;
};

}  // namespace tsprun::detail::test
