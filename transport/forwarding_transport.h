// A transport that passes every call on to another one: the base class of decorators (verify/, fault/), which override only the
// calls that they change.
#pragma once

#include "transport/transport.h"

namespace tsprun::detail {

/// Forwards all calls to the transport that it wraps.
class ForwardingTransport : public Transport {
 public:
  /// Wraps `inner`, which must outlive this object.
  explicit ForwardingTransport(Transport& inner) : inner_(&inner) {}

  std::size_t plain_limit() const override { return inner_->plain_limit(); }
  bool can_send_from(std::span<const std::byte> memory) const override { return inner_->can_send_from(memory); }
  bool can_receive_into(std::span<const std::byte> memory) const override { return inner_->can_receive_into(memory); }
  bool checks_payloads() const override { return inner_->checks_payloads(); }
  Ticket send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload, Delivery delivery) override {
    return inner_->send(lane, envelope, payload, delivery);
  }
  Outcome test_send(LaneId lane, Ticket ticket) override { return inner_->test_send(lane, ticket); }
  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override {
    return inner_->receive(lane, envelope, into);
  }
  Ticket view(LaneId lane, const Envelope& envelope, std::size_t bytes) override { return inner_->view(lane, envelope, bytes); }
  Outcome test_receive(LaneId lane, Ticket ticket) override { return inner_->test_receive(lane, ticket); }
  bool can_view(int peer) const override { return inner_->can_view(peer); }
  std::span<const std::byte> access(LaneId lane, Ticket ticket, std::size_t offset, std::size_t bytes) override {
    return inner_->access(lane, ticket, offset, bytes);
  }
  void release(LaneId lane, Ticket ticket) override { inner_->release(lane, ticket); }
  Found found(LaneId lane) const override { return inner_->found(lane); }
  bool progress() override { return inner_->progress(); }
  std::uint64_t arm() override { return inner_->arm(); }
  void disarm() override { inner_->disarm(); }
  int descriptor() const override { return inner_->descriptor(); }

 protected:
  Transport& inner() const { return *inner_; }

 private:
  Transport* inner_;
};

}  // namespace tsprun::detail
