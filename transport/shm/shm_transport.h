// Transport over shared memory between the ranks of one node: peers read each other's heaps, as GPUs do over xGMI or NVLink.
//
// Payloads of up to 128 bytes travel in the place of the message (lane.h), up to 8 KiB through the lane's ring. Larger ones, and
// those sent by reference, stay in the sender's heap until the receiver has copied or viewed them: one copy, straight from heap
// to heap. Nothing happens in the background: progress() has nothing to do, and every send and every release rings the doorbell
// of its peer.
#pragma once

#include "transport/endpoint.h"
#include "transport/shm/lane.h"

#include <memory>
#include <vector>

namespace tsprun::detail::shm {

/// Transport over the node's shared memory; see endpoint.h and transport.h for the calls.
class ShmTransport final : public Endpoint {
 public:
  /// Makes the transport of `local_rank`. Peers are numbered by local rank. `memory` must outlive the transport.
  ShmTransport(NodeMemory& memory, int local_rank);
  ~ShmTransport() override;

  void register_memory(std::span<std::byte> memory) override;
  /// Returns true if `memory` lies in this rank's heap, so that payloads of any size can be sent from it.
  bool is_registered(std::span<const std::byte> memory) const;
  std::size_t plain_limit() const override { return kEagerBytes; }
  bool can_send_from(std::span<const std::byte> memory) const override { return is_registered(memory); }
  bool can_receive_into(std::span<const std::byte>) const override { return true; }

  Ticket send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload, Delivery delivery) override;
  Outcome test_send(LaneId lane, Ticket ticket) override;
  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override;
  Ticket view(LaneId lane, const Envelope& envelope, std::size_t bytes) override;
  Outcome test_receive(LaneId lane, Ticket ticket) override;
  bool can_view(int peer) const override;
  std::span<const std::byte> access(LaneId lane, Ticket ticket, std::size_t offset, std::size_t bytes) override;
  void release(LaneId lane, Ticket ticket) override;
  Found found(LaneId lane) const override;

  bool close(int) override { return true; }  // messages lie in node memory, which outlives this process
  std::optional<Found> unreceived(LaneId lane) const override;
  const TrafficCounters& counters() const override { return counters_; }

 private:
  struct ShmSend;
  struct ShmReceive;
  struct Posted;
  enum class Want : std::uint8_t { copy, view };

  ShmSend& outgoing(LaneId lane);
  ShmReceive& incoming(LaneId lane);
  ShmSend& make_outgoing(LaneId lane);
  ShmReceive& make_incoming(LaneId lane);
  std::size_t index(LaneId lane) const;
  Slot* free_slot(ShmSend& out);
  Ticket publish(ShmSend& out, const Envelope& envelope, Slot& slot, std::uint64_t bytes);
  Ticket post(LaneId lane, const Envelope& envelope, std::byte* into, std::size_t bytes, Want want);
  Outcome inspect(ShmReceive& in, Ticket ticket, const Slot& slot, Posted& posted);
  void finish(ShmReceive& in, Ticket ticket);

  NodeMemory* memory_;
  int local_rank_;
  std::span<std::byte> heap_;
  std::vector<std::unique_ptr<ShmSend>> outgoing_;  // by peer and stream, made on first use
  std::vector<std::unique_ptr<ShmReceive>> incoming_;
  TrafficCounters counters_;
  /// Lanes to this rank that weren't used when unreceived() last asked.
  struct UnusedLanes {
    std::size_t first = 0;
    std::size_t count = 0;
  };
  mutable UnusedLanes unused_;
};

}  // namespace tsprun::detail::shm
