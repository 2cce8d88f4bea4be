// Transport over RDMA (ibverbs): reliable connections and one-sided writes; nothing is ever read from a peer.
//
//   start        each pair of ranks has a queue pair, by which a probe goes. In jobs of many nodes it is a small one, without
//                messages: when one end first uses the other, both make a whole one (growing.cpp)
//   first        each end that uses a queue opens it: it makes a ring, and writes where it lies into the other's door. Entries
//                are held until the other end has opened it, too
//   up to 8 KiB  one WRITE_WITH_IMM carries header and payload into entry t % 16 of the receiver's ring, on the lane's credits;
//                inline in the work request if it is small
//   larger       the receiver, once its buffer is posted, writes a grant: where the payload must go, with the keys of its slabs.
//                The sender compares envelopes and writes straight into place, in chunks of at most 1 MiB, with streams in turns;
//                an immediate tells that all have arrived: with the payload if that is one chunk, else behind it
//   several      a rank may have several adapters, and several queue pairs by each (joining.cpp): chunks go by the one that has
//   adapters     least to carry, and each that has carried some tells so behind them. Everything else goes by the first adapter,
//                or the first that is left: one that fails leaves the others (losing.cpp)
//
// Arrival is known from completions alone, never from payload bytes. Credits travel in entries and grants or, if none goes that
// way, in an immediate of their own.
#pragma once

#include "transport/endpoint.h"
#include "transport/verbs/device.h"

#include <memory>
#include <optional>
#include <vector>

namespace tsprun::detail::verbs {

struct Address;
struct GrantHeader;

/// Parameters of a rank's verbs transport.
struct VerbsOptions {
  std::string device = {};                    ///< value of `--rdma` (DeviceChoice); empty: choose
  int local_rank = 0;                         ///< this rank's number on its node
  int local_ranks = 1;                        ///< ranks of its node, which divide the node's ports
  std::uint64_t timeout_ns = 30'000'000'000;  ///< the job's deadline; the NIC's retries follow from it unless `device` sets them
  int peers = 1;                              ///< number of peers; they are numbered from 0
  std::span<std::byte> heap = {};             ///< memory that register_memory() accepts
  std::size_t heap_expected = ~std::size_t{0};  ///< first bytes of the heap that are likely to be all that is used
  std::string place = {};                       ///< place of this rank, for messages: "node 1"
};

/// Transport over RDMA; see endpoint.h and transport.h for the calls.
class VerbsTransport final : public Endpoint {
 public:
  /// Opens the device; call it only after fork. Throws Error(refused) if options.device can't be used. If no device was asked
  /// for and none is usable, the transport is made nevertheless and reaches nobody: see why_not().
  explicit VerbsTransport(const VerbsOptions& options);
  ~VerbsTransport() override;

  /// Returns why no device is used; empty if one is.
  const std::string& why_not() const;
  /// Returns the device, port and GID in use, for reports; empty without one.
  std::string chosen() const;
  /// Returns how many queue pairs carry payloads to a peer now; 0 while none does.
  int ways(int peer) const;

  std::vector<std::byte> address(int peer) override;
  Reach can_reach(int peer, std::span<const std::byte> address) const override;
  void connect(int peer, std::span<const std::byte> address) override;
  /// Returns true once the peer may write to this rank. connect() tries only once to find the peer; each call of linked() tries
  /// again, which may take the kernel a second. Throws Error(refused), with the kernel's reason, after half of the deadline.
  bool linked(int peer) override;
  /// Returns true once the probe, which the first call sends, has reached the peer. Call it only after all peers are linked,
  /// else the probe waits for a retransmission. A probe that failed breaks the connection: see broken().
  bool connected(int peer) override;
  std::string broken(int peer) const override;
  void forget(int peer) override;

  void register_memory(std::span<std::byte> memory) override;
  std::span<std::byte> registration_of(std::span<std::byte> memory) const override;
  bool pins_memory() const override { return true; }
  /// Returns true if `memory` is registered, so that payloads of any size can be sent from it.
  bool is_registered(std::span<const std::byte> memory) const;
  std::size_t plain_limit() const override;
  bool can_send_from(std::span<const std::byte> memory) const override { return is_registered(memory); }
  bool can_receive_into(std::span<const std::byte> memory) const override { return is_registered(memory); }

  Ticket send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload, Delivery delivery) override;
  Outcome test_send(LaneId lane, Ticket ticket) override;
  Ticket receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) override;
  Outcome test_receive(LaneId lane, Ticket ticket) override;
  Found found(LaneId lane) const override;
  bool progress() override;
  std::uint64_t arm() override;
  void disarm() override;
  int descriptor() const override;
  bool close(int peer) override;
  std::optional<Found> unreceived(LaneId lane) const override;
  const TrafficCounters& counters() const override { return counters_; }

 private:
  struct VerbsSend;
  struct VerbsReceive;
  struct Posted;
  struct Large;
  struct Ring;
  class Chunks;
  struct Growth;
  struct Other;
  struct Peer;
  struct Parts;
  enum class Want : std::uint8_t { copy, grant };

  Peer& peer(int number) const;
  VerbsSend& outgoing(LaneId lane) const;
  VerbsReceive& incoming(LaneId lane) const;

  // sending.cpp
  Ticket begin_send(Peer& to, LaneId lane);
  void write_entry(Peer& to, LaneId lane, Ticket ticket, const Envelope& envelope, std::span<const std::byte> payload,
                   std::uint64_t bytes, std::uint32_t kind, bool signalled);
  void post_entry(Peer& to, int stream, Ticket ticket, std::size_t bytes, bool signalled);
  void post_held(Peer& to, int stream);
  void check_grant(Peer& from, int stream, Ticket ticket);
  void write_refusals(Peer& to, int stream);
  std::uint32_t usable_ways(const Peer& to, const Large& large, std::uint32_t adapters) const;
  std::optional<std::size_t> next_way(Peer& to, const Large& large);
  void write_large(Peer& to);
  bool write_chunk(Peer& to, int stream);
  bool tell_parts(Peer& to, int stream, Ticket ticket);
  bool finished_sending(Peer& to);

  // receiving.cpp
  Ticket post(LaneId lane, const Envelope& envelope, std::byte* into, std::size_t bytes, Want want);
  void write_grants(Peer& to, int stream);
  std::size_t put_keys(const Peer& to, const Posted& posted, GrantHeader& grant, std::byte* keys) const;
  void write_credit(Peer& to, int stream);
  Outcome inspect(Peer& from, int stream, Ticket ticket);
  void finish(Peer& from, int stream, Ticket ticket);

  // growing.cpp
  void grow(Peer& with);
  void advance(Peer& at);
  void link_whole(Peer& at);
  void wait_to_link(Peer& at);
  void link_again();
  void give_up(Peer& at, const std::string& why);
  void take_growth(Peer& from, std::uint32_t immediate);

  // joining.cpp
  std::vector<int> common_adapters(const Address& there) const;
  void list_others(Peer& with);
  void join(Peer& with);
  void advance_others(Peer& at);
  void advance_other(Peer& at, std::size_t way);
  void link_other(Peer& at, std::size_t way);
  void probe_other(Peer& at, std::size_t way);
  void leave_out(Peer& at, std::size_t way, const std::string& why);
  void take_join(Peer& from, std::size_t way, std::uint32_t low);

  // losing.cpp
  bool lose_way(Peer& at, std::size_t way, const std::string& why);
  void lose(Peer& at, std::size_t way, const std::string& why);
  void leave_adapter(std::size_t adapter, const std::string& why);
  void lose_adapter(std::size_t adapter, const std::string& why, std::optional<std::uint32_t> queue_pair = std::nullopt);
  void move(Peer& at);
  void report(Peer& at);
  void tell_lost(Peer& at, std::size_t way);
  void take_lost(Peer& from, std::uint32_t low);
  void settle(Peer& at);
  void send_again(Peer& at, int stream, std::uint32_t lost);
  void send_payload_again(Peer& at, int stream, Ticket ticket, std::uint32_t lost);

  // opening.cpp
  void open(Peer& with, int stream);
  void tell_opened(Peer& to);
  void take_opened(Peer& from, int stream);

  // verbs_transport.cpp
  void link(Peer& peer);
  void pump(Peer& peer);
  bool completion(const void* completion);
  void failed(Peer& at, std::uint32_t which, const void* completion);
  void arrived(Peer& from, std::uint32_t immediate);
  void take_grant(Peer& from, int stream, std::uint32_t low);
  void take_part(Peer& from, int stream, std::uint32_t low);
  void take_entry(Peer& from, int stream, std::uint32_t low);
  void take_credit(Peer& from, int stream, std::uint64_t taken);
  void look_at_events();
  void ask_silent_peers();
  void break_lanes(Peer& peer, const std::string& cause, std::size_t way = 0);
  Outcome unless_broken(const Peer& peer);
  std::string why_broken(const Peer& peer) const;
  std::string why_failed(const Peer& peer, std::uint32_t which, const void* completion) const;

  std::unique_ptr<Parts> parts_;
  TrafficCounters counters_;
};

}  // namespace tsprun::detail::verbs
