// A decorator that makes any transport look like a slower link: every message arrives later by a latency and by its bytes over a
// bandwidth. A delay costs no CPU, so what a schedule hides behind computation can be told from what it waits for.
//
// The link into this rank from each peer carries one message at a time, whatever its stream; its time begins when the message is
// seen. Only arrivals are delayed: the receiving side decides, and no clock but its own is asked.
#pragma once

#include "transport/fault/spec.h"
#include "transport/transport.h"

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace tsp::fault {

struct LinkSpeed {
  double bytes_per_ns = 0;  ///< 0: no limit
  std::uint64_t latency_ns = 0;
};

/// A fault `delay` or `slow` of the messages from one peer.
struct LinkFault {
  int peer;  ///< as the transport numbers it
  Spec spec;
};

class DelayTransport final : public Transport {
 public:
  /// `inner` must outlive it.
  /// All links have this speed; messages that a fault strikes are slower or later still. Which those are depends on (seed, from,
  /// to, number of the message) alone.
  DelayTransport(Transport& inner, const LinkSpeed& speed, std::vector<LinkFault> faults = {})
      : inner_(inner), speed_(speed), faults_(std::move(faults)) {}

  std::string_view name() const override { return inner_.name(); }
  std::vector<std::byte> address(int peer) override { return inner_.address(peer); }
  Reach can_reach(int peer, std::span<const std::byte> address) const override { return inner_.can_reach(peer, address); }
  void connect(int peer, std::span<const std::byte> address) override { inner_.connect(peer, address); }
  bool connected(int peer) override { return inner_.connected(peer); }
  void register_memory(std::span<std::byte> memory) override { inner_.register_memory(memory); }
  RemoteSpan remote(std::span<const std::byte> memory) const override { return inner_.remote(memory); }
  bool is_registered(std::span<const std::byte> memory) const override { return inner_.is_registered(memory); }
  std::size_t plain_limit() const override { return inner_.plain_limit(); }
  bool can_receive_into(std::span<const std::byte> memory) const override { return inner_.can_receive_into(memory); }
  bool checks_payloads() const override { return inner_.checks_payloads(); }

  Ticket send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload, Delivery delivery) override {
    return inner_.send(lane, envelope, payload, delivery);
  }
  Ticket put(LaneId lane, const Envelope& envelope, RemoteSpan where, std::span<const std::byte> payload) override {
    return inner_.put(lane, envelope, where, payload);
  }
  Ticket receive_put(LaneId lane, const Envelope& envelope, std::span<const std::byte> where) override {
    return expect(lane, inner_.receive_put(lane, envelope, where), where.size());
  }
  Outcome test_send(LaneId lane, Ticket ticket) override { return inner_.test_send(lane, ticket); }
  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override {
    return expect(lane, inner_.receive(lane, envelope, into), into.size());
  }
  Ticket view(LaneId lane, const Envelope& envelope, std::size_t bytes) override {
    return expect(lane, inner_.view(lane, envelope, bytes), bytes);
  }
  Outcome test_receive(LaneId lane, Ticket ticket) override;
  bool can_view(int peer) const override { return inner_.can_view(peer); }
  std::span<const std::byte> access(LaneId lane, Ticket ticket, std::size_t offset, std::size_t bytes) override {
    return inner_.access(lane, ticket, offset, bytes);
  }
  void release(LaneId lane, Ticket ticket) override { inner_.release(lane, ticket); }
  Found found(LaneId lane) const override { return inner_.found(lane); }

  bool progress() override;
  std::uint64_t arm() override;
  void disarm() override { inner_.disarm(); }
  int descriptor() const override { return inner_.descriptor(); }
  bool close() override { return inner_.close(); }
  const TrafficCounters& counters() const override { return inner_.counters(); }

 private:
  /// A message that was asked for and hasn't been handed over yet.
  struct Expected {
    Ticket ticket;
    std::size_t bytes;
    std::uint64_t number;        // of the messages of this peer, from 1
    std::uint64_t ready_ns = 0;  // 0: not seen yet
  };
  struct Lane {
    LaneId id;
    std::deque<Expected> expected;  // in the order of tickets
  };

  Ticket expect(LaneId lane, Ticket ticket, std::size_t bytes);
  void see(Lane& lane, Expected& message);
  LinkSpeed speed_for(int peer, std::uint64_t number) const;

  Transport& inner_;
  LinkSpeed speed_;
  std::map<std::pair<int, Stream>, Lane> lanes_;
  std::vector<LinkFault> faults_;
  std::map<int, std::uint64_t> link_free_ns_;  // by peer
  std::map<int, std::uint64_t> messages_;      // expected so far, by peer
};

}  // namespace tsp::fault
