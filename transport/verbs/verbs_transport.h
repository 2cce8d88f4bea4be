// Messages over RDMA: reliable connections, one-sided writes, nothing ever read from a peer.
//
//   up to 8 KiB  one WRITE_WITH_IMM of header and payload into entry t % 16 of the receiver's ring, on the lane's credits; inline
//                in the work request if it is small
//   larger       the receiver grants: it writes where the payload shall go, with the slabs' keys, once its buffer is posted; the
//                sender compares envelopes and answers with writes, the last of them with an immediate, straight into place
//   put          writes to where the peer said, then an entry that says so
//
// Arrival is known from completions alone, never from payload bytes. Credits ride on entries and grants, or, when nothing goes
// that way, on an immediate of their own.
#pragma once

#include "transport/transport.h"
#include "transport/verbs/device.h"

#include <memory>
#include <vector>

namespace tsprun::verbs {

struct VerbsOptions {
  std::string device = {};                      ///< as `--rdma` says (DeviceChoice); empty: choose
  int local_rank = 0;                           ///< takes that active port, modulo their number
  std::uint64_t timeout_ns = 30'000'000'000;    ///< the job's deadline, from which the NIC's own retries are derived
  int peers = 1;                                ///< peers are numbered from 0 to this, not included
  std::span<std::byte> heap = {};               ///< what register_memory() may be asked for
  std::size_t heap_expected = ~std::size_t{0};  ///< of which the first so many bytes are likely to be all that is used
  std::string place = {};                       ///< where this rank is, for messages: "node 1"
};

class VerbsTransport final : public Transport {
 public:
  /// Opens the device: only after fork. Throws Error(refused) if options.device can't be used. Without a usable device and none
  /// asked for, the transport is made all the same and reaches nobody: see why_not().
  explicit VerbsTransport(const VerbsOptions& options);
  ~VerbsTransport() override;

  /// Why there is no device; empty if there is one.
  const std::string& why_not() const;
  /// The device, port and GID in use, for reports; empty without one.
  std::string chosen() const;

  std::string_view name() const override { return "verbs"; }
  std::vector<std::byte> address(int peer) override;
  Reach can_reach(int peer, std::span<const std::byte> address) const override;
  void connect(int peer, std::span<const std::byte> address) override;
  /// True once the peer may write to this rank: connect() tries only once to find the way, this goes on with it. One try may take
  /// the kernel a second. Throws Error(refused) in its words after half of the deadline.
  bool linked(int peer);
  /// Sends the probe when first asked: ask once all peers are linked, else it waits for a retransmission. A probe that failed
  /// breaks the way: see broken().
  bool connected(int peer) override;
  /// Why the way to a peer is broken; empty if it isn't.
  std::string broken(int peer) const;

  void register_memory(std::span<std::byte> memory) override;
  RemoteSpan remote(std::span<const std::byte> memory) const override;
  bool is_registered(std::span<const std::byte> memory) const override;
  std::size_t plain_limit() const override;
  bool can_receive_into(std::span<const std::byte> memory) const override { return is_registered(memory); }

  Ticket send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload, Delivery delivery) override;
  Ticket put(LaneId lane, const Envelope& envelope, RemoteSpan where, std::span<const std::byte> payload) override;
  Outcome test_send(LaneId lane, Ticket ticket) override;
  Ticket receive_put(LaneId lane, const Envelope& envelope, std::span<const std::byte> where) override;
  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override;
  Outcome test_receive(LaneId lane, Ticket ticket) override;
  Found found(LaneId lane) const override;

  bool can_view(int) const override { return false; }
  /// Peers' memory isn't addressable: these three throw Error(refused).
  Ticket view(LaneId lane, const Envelope& envelope, std::size_t bytes) override;
  std::span<const std::byte> access(LaneId lane, Ticket ticket, std::size_t offset, std::size_t bytes) override;
  void release(LaneId lane, Ticket ticket) override;

  bool progress() override;
  std::uint64_t arm() override;
  void disarm() override;
  int descriptor() const override;
  bool close() override;
  const TrafficCounters& counters() const override { return counters_; }

 private:
  struct Outgoing;
  struct Incoming;
  struct Posted;
  struct Large;
  struct Peer;
  struct Parts;
  enum class Want : std::uint8_t { copy, grant, put };

  Peer& peer(int number) const;
  Outgoing& outgoing(LaneId lane) const;
  Incoming& incoming(LaneId lane) const;

  // sending.cpp
  Ticket begin_send(Peer& to, Outgoing& out) const;
  void write_entry(Peer& to, LaneId lane, Ticket ticket, const Envelope& envelope, std::span<const std::byte> payload,
                   std::uint64_t bytes, std::uint64_t where, std::uint32_t kind, bool signalled);
  void check_grant(Peer& from, int stream, Ticket ticket);
  void write_refusals(Peer& to, int stream);
  void write_large(Peer& to, int stream);
  bool finished_sending(Peer& to);

  // receiving.cpp
  Ticket post(LaneId lane, const Envelope& envelope, std::byte* into, std::size_t bytes, Want want);
  void write_grants(Peer& to, int stream);
  void write_credit(Peer& to, int stream);
  Outcome inspect(Peer& from, int stream, Ticket ticket);
  void finish(Peer& from, int stream, Ticket ticket);

  // verbs_transport.cpp
  void link(Peer& peer);
  void pump(Peer& peer);
  bool completion(const void* completion);
  void arrived(Peer& from, std::uint32_t immediate);
  void take_credit(Peer& from, int stream, std::uint64_t taken);
  void look_at_events();
  void break_lanes(Peer& peer, const std::string& cause);
  Outcome unless_broken(const Peer& peer);
  std::string why_broken(const Peer& peer) const;

  std::unique_ptr<Parts> parts_;
  TrafficCounters counters_;
};

}  // namespace tsprun::verbs
