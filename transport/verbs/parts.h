// The private side of VerbsTransport: its state per lane, per peer and per device.
#pragma once

#include "transport/verbs/adapter.h"
#include "transport/verbs/judgement.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/verbs_transport.h"
#include "transport/verbs/wire.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tsprun::detail::verbs {

constexpr std::uint64_t bit(Ticket ticket) { return std::uint64_t{1} << (ticket % 64); }

/// A message whose payload is written when the receiver has granted it.
struct VerbsTransport::Large {
  Envelope envelope;
  std::span<const std::byte> payload;
  std::size_t written = 0;
  std::uint32_t may_use = 1;                       // bit w: way w may carry chunks of it
  std::array<std::uint64_t, kMostWays> last{};     // its last work request by way w; 0: none
  std::array<std::uint8_t, kMostWays> parts_of{};  // bit i: way w tells that part i has arrived
  int parts = 0;                                   // number of parts; 0: they aren't told yet
  struct Chunk {
    std::size_t offset;
    std::size_t bytes;
    std::size_t way;
    std::uint64_t request;
  };
  std::vector<Chunk> chunks{};      // that have left, where there are several ways
  std::vector<Chunk> again{};       // that were lost with their way
  std::uint32_t parts_to_tell = 0;  // bit i: part i has still to be told, or to be told again
  bool is_written() const { return written == payload.size() && again.empty(); }
};

/// The sender's side of a lane. Sets of messages are bits, by ticket % 64; at most 16 messages are in flight.
struct VerbsTransport::VerbsSend {
  Ticket last = 0;
  std::uint64_t taken = 0;                          // messages that the receiver has finished: credit
  std::uint64_t waiting = 0;                        // large messages, not granted yet
  std::uint64_t writing = 0;                        // large messages, granted, not written completely
  std::uint64_t refusing = 0;                       // large messages that don't match their grant; the receiver isn't told yet
  std::uint64_t granted = 0;                        // messages granted before they were sent
  std::uint64_t written = 0;                        // large messages whose work requests are all posted
  std::uint64_t copied = 0;                         // messages that were done when send() returned
  std::uint64_t held = 0;                           // entries that lie in the mirror until the peer has opened the queue
  std::uint64_t grants_seen = 0;                    // messages whose grant has arrived
  std::array<std::uint64_t, kSlots> request{};      // work request of the entry of message t; 0: it has none, or it isn't posted
  std::array<std::uint16_t, kSlots> entry_bytes{};  // of the entry of message t
  std::array<std::uint8_t, kSlots> entry_way{};     // the way by which it left
  std::array<Large, kSlots> large;
};

/// A message that the receiver waits for.
struct VerbsTransport::Posted {
  Envelope envelope;
  std::byte* into = nullptr;
  std::size_t bytes = 0;
  Want want = Want::copy;
};

/// The receiver's side of a lane.
struct VerbsTransport::VerbsReceive {
  Ticket last = 0;             // newest posted
  std::uint64_t prefix = 0;    // all messages up to this one are finished
  std::uint64_t finished = 0;  // message t > prefix is finished
  std::uint64_t entries = 0;   // entry t lies in the ring
  std::uint64_t data = 0;      // the payload of granted message t is in its place, with all its parts
  std::uint64_t to_grant = 0;
  std::uint64_t granted = 0;
  std::uint64_t told = 0;  // last `prefix` that the sender was told
  std::array<std::uint64_t, kSlots> grant_request{};
  std::array<std::uint8_t, kSlots> grant_way{};  // the way by which the grant of message t left
  std::array<Posted, kSlots> posted{};
  std::array<Arrived, kSlots> parts{};  // of the payload of granted message t
  Found found;
};

/// The memory of a queue that this rank and a peer use.
struct VerbsTransport::Ring {
  /// Throws Error(out_of_memory).
  explicit Ring(const std::vector<std::unique_ptr<Adapter>>& adapters) : region(adapters.front()->pd.get(), 2 * kRingBytes) {
    for (std::size_t i = 1; i < adapters.size(); ++i) region.share(adapters[i]->pd.get());
  }

  Region region;   // what arrives, then what leaves
  Opened there{};  // the peer's; all zero until it has opened it
  bool told = false;
  std::size_t told_way = 0;  // the way by which the peer was told of it

  std::byte* arriving(std::size_t offset) const { return region.data() + offset; }
  std::byte* leaving(std::size_t offset) const { return region.data() + kRingBytes + offset; }
};

/// Largest write of a payload.
inline constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
/// Smallest one that it is worth to send by a way of its own.
inline constexpr std::size_t kLeastChunkBytes = std::size_t{1} << 18;

/// The chunks of payloads that are under way to a peer by one way. What is posted later, also on other streams, waits for them
/// alone.
class VerbsTransport::Chunks {
 public:
  /// Bounds their bytes by what the port carries in 1.25 ms, a little more than the millisecond after which a rank that computes
  /// looks at its messages again: so a fast port is never idle. 16 to 64 MiB; 64 if the rate isn't known.
  explicit Chunks(double port_gbps)
      : most_(port_gbps <= 0 ? kMost : std::clamp(static_cast<std::size_t>(port_gbps * 1e9 / 8 * 1.25e-3), kLeast, kMost)),
        gbps_(port_gbps <= 0 ? 1 : port_gbps) {}

  /// Returns whether another chunk may be posted, by what the queue pair has completed.
  bool have_room(const QueuePair& pair) {
    for (; first_ != next_ && pair.is_completed(posted_[first_ % kSends].request); ++first_)
      bytes_ -= posted_[first_ % kSends].bytes;
    return bytes_ < most_;
  }
  void add(std::uint64_t request, std::size_t bytes) {
    posted_[next_++ % kSends] = {request, static_cast<std::uint32_t>(bytes)};
    bytes_ += bytes;
  }
  /// Returns how long the port has to do with these bytes and as many more, in units that all ports share.
  double load_with(std::size_t more) const { return static_cast<double>(bytes_ + more) / gbps_; }

 private:
  struct PostedChunk {
    std::uint64_t request;
    std::uint32_t bytes;
  };
  static constexpr std::size_t kLeast = std::size_t{16} << 20;
  static constexpr std::size_t kMost = std::size_t{64} << 20;
  std::size_t most_;
  double gbps_;
  std::size_t bytes_ = 0;
  std::size_t first_ = 0;  // of those that aren't known to be complete: no more than the send queue has room for
  std::size_t next_ = 0;
  std::array<PostedChunk, kSends> posted_{};
};

/// Stages of a pair of ranks on its way from a small queue pair to a whole one.
struct VerbsTransport::Growth {
  bool needed = false;            // the first queue pair is small, at this end or at the other
  bool told = false;              // the peer was told the number of this end's
  std::uint64_t give_up_ns = 0;   // deadline for linking it; 0: it wasn't tried
  std::uint64_t next_try_ns = 0;  // time of the next try to link it, if the last one came too early
  bool linked = false;            // this end's is ready to send and to receive
  bool told_ready = false;        // the peer was told that
  WholeThere there{};             // what the peer has told
};

/// A queue pair to a peer that carries payloads alone, beside that which carries messages (joining.cpp).
struct VerbsTransport::Other {
  Other(std::size_t of_adapter, double port_gbps, Address to) : adapter(of_adapter), chunks(port_gbps), address(std::move(to)) {}

  std::size_t adapter;
  Chunks chunks;
  Address address;                // of the peer's adapter of this number
  std::optional<QueuePair> pair;  // made when the peer is first used
  JoinThere there{};              // what the peer has told
  bool told = false;              // the peer was told the number of this end's
  bool linked = false;            // this end's is ready to send and to receive
  bool told_linked = false;
  bool told_proved = false;  // the probe has arrived, and the peer knows
  bool told_left = false;
  std::uint64_t next_try_ns = 0;  // time of the next try to link it, if the last one came too early
  int tries = 0;
  std::uint64_t first_probe = 0;
  std::uint64_t probe = 0;
  std::string left_out;  // why it is left out; empty: it isn't

  bool carries() const { return told_proved && there.proved && left_out.empty(); }
  bool waits_to_link() const { return next_try_ns != 0 && !linked && left_out.empty(); }
};

/// Returns the largest payload of a packet on the way to a peer.
inline std::size_t packet_bytes(const ChosenPort& port, const Address& there) {
  return std::size_t{128} << std::min(port.port.mtu, there.mtu);
}

/// Returns why a port can't reach another rank's; empty: it may. `name`: that port, for messages.
std::string why_unreachable(const ChosenPort& here, const PortFields& there, const std::string& name);

/// Connection to one peer, the memory that both ends write, and all lanes.
struct VerbsTransport::Peer {
  Peer(Adapter& by, const QueueLengths& lengths, int peer_number, std::uint32_t first_packet)
      : number(peer_number),
        first(by.pd.get(), by.events->queue_for(lengths.completions()), by.port, lengths, tag(peer_number, kFirst), first_packet),
        chunks(by.port.port.gbps) {
    by.events->take(lengths.completions());
  }

  /// The queue pairs of a peer in the tags of their requests: the first, the one that is made when the peer is first used, and
  /// then those of `others`.
  static constexpr std::uint32_t kFirst = 0;
  static constexpr std::uint32_t kWholeOne = 1;
  static constexpr std::uint32_t kOthers = 2;
  static constexpr std::uint32_t kTagsOfPeer = 16;
  static_assert(kOthers + kMostWays - 1 <= kTagsOfPeer);
  static constexpr std::uint32_t tag(int peer, std::uint32_t which) {
    return static_cast<std::uint32_t>(peer) * kTagsOfPeer + which;
  }

  /// Returns the ring of a queue; null until one of the two ranks has begun to use it.
  Ring* ring(int stream) const { return rings[static_cast<std::size_t>(stream)].get(); }
  /// Returns true once the peer has told where its ring for the queue is.
  bool is_there(int stream) const { return ring(stream) != nullptr && ring(stream)->there.bytes != 0; }
  /// Returns true once each end has told the other where its ring is: the peer's may be written. This end may hear before it can
  /// tell, as news of a small queue pair and of a whole one may come in any order.
  bool is_open(int stream) const { return is_there(stream) && ring(stream)->told; }
  /// Writes `bytes` prepared at `offset` of what leaves to the same offset of the peer's ring. Returns as QueuePair::write().
  /// Precondition: is_open(stream).
  std::uint64_t mirror(int stream, std::size_t offset, std::size_t bytes, Immediate immediate, bool signalled) {
    const Ring& to = *ring(stream);
    const std::size_t by = adapter_of(main);
    return pair->write({to.leaving(offset), bytes, to.region.local_key(by)}, {to.there.address + offset, to.there.keys[by]},
                       immediate, signalled);
  }
  /// Writes nothing by one of the first two queue pairs, with an immediate or without. Returns as QueuePair::write().
  std::uint64_t nudge(QueuePair& by, std::optional<Immediate> immediate, bool signalled) const {
    return by.write({nullptr, 0, 0}, {address.door(), address.doors_key}, immediate, signalled);
  }
  /// Writes nothing by a way, with an immediate or without. Returns as QueuePair::write().
  std::uint64_t nudge(std::size_t by, std::optional<Immediate> immediate, bool signalled) {
    return way(by).write({nullptr, 0, 0}, {address_of(by).door(), address_of(by).doors_key}, immediate, signalled);
  }
  /// Returns requests that are done, of all queue pairs.
  std::uint64_t done() const {
    std::uint64_t all = first.done() + (whole ? whole->done() : 0);
    for (const Other& each : others) all += each.pair ? each.pair->done() : 0;
    return all;
  }

  /// Returns the queue pair with this place in tags; null if it isn't made.
  QueuePair* queue_pair(std::uint32_t which) {
    if ((lost >> way_of(which) & 1) != 0) return nullptr;
    if (which == kFirst) return &first;
    if (which == kWholeOne) return whole ? &*whole : nullptr;
    if (which - kOthers >= others.size()) return nullptr;
    std::optional<QueuePair>& other = others[which - kOthers].pair;
    return other ? &*other : nullptr;
  }

  /// Returns the way of that queue pair.
  static constexpr std::size_t way_of(std::uint32_t which) { return which < kOthers ? 0 : which - kOthers + 1; }

  // Ways of payloads: 0 is the queue pair that carries messages unless it is lost, w the w-th of the others.
  std::size_t ways() const { return 1 + others.size(); }
  /// Precondition: the way is made.
  QueuePair& way(std::size_t which) { return which != 0 ? *others[which - 1].pair : growth.needed ? *whole : first; }
  const QueuePair& way(std::size_t which) const { return which != 0 ? *others[which - 1].pair : growth.needed ? *whole : first; }
  Chunks& chunks_of(std::size_t which) { return which == 0 ? chunks : others[which - 1].chunks; }
  std::size_t adapter_of(std::size_t which) const { return which == 0 ? 0 : others[which - 1].adapter; }
  const Address& address_of(std::size_t which) const { return which == 0 ? address : others[which - 1].address; }
  /// Returns the ways (bit w: way w) that are proved at both ends, or, of number 0, usable at both, and that haven't failed.
  std::uint32_t carrying() const {
    std::uint32_t ways = was_ready ? 1 : 0;
    for (std::size_t i = 0; i < others.size(); ++i) ways |= others[i].carries() ? 2U << i : 0;
    return ways & ~(lost | to_lose);
  }
  bool carries(std::size_t which) const { return (carrying() >> which & 1) != 0; }
  /// Returns true if the peer may use this way: this end has told it that the way is proved, and hasn't left it out.
  bool may_carry(std::size_t which) const {
    return which == 0 || (others[which - 1].told_proved && others[which - 1].left_out.empty());
  }
  /// Returns true while the two ends don't agree yet on which ways are lost: nothing else is posted then.
  bool is_moving() const { return (lost | to_lose | there.lost) != settled; }
  /// Returns the time of the next try to link something; kNoDeadline: nothing waits for one.
  std::uint64_t next_try_ns() const {
    std::uint64_t next = growth.next_try_ns != 0 && !growth.linked ? growth.next_try_ns : kNoDeadline;
    for (const Other& each : others) next = std::min(next, each.waits_to_link() ? each.next_try_ns : kNoDeadline);
    return next;
  }

  int number;
  std::array<std::unique_ptr<Ring>, kQueues> rings;
  QueuePair first;                 // made at the start; carries the probe. Queue pairs are destroyed before the rings they write
  std::optional<QueuePair> whole;  // made when the peer is first used, if either end's first one is small (growing.cpp)
  QueuePair* pair = nullptr;       // the one of them that carries messages; null: it isn't made yet
  bool ready = false;              // messages may be written by it: both of its ends are linked
  std::vector<Other> others;       // further ones, which carry payloads alone
  bool joining = false;            // they are made: the peer is used
  bool closing = false;            // what isn't made by now isn't needed any more
  // Lost ways (losing.cpp), bit w: way w.
  std::size_t main = 0;       // way of `pair`
  bool was_ready = false;     // `ready` has been true
  std::uint32_t to_lose = 0;  // failed, not closed yet
  std::uint32_t lost = 0;     // closed at this end
  std::uint32_t told_by = 0;  // ways by which the peer was told what `here` says
  std::uint32_t settled = 0;  // all that was lost with these has been posted again
  LostNews here{};            // this end's last word of lost ways
  LostNews there{};           // the peer's
  std::array<Report, kQueues> reports{};
  std::string lost_why;  // why each was lost
  Growth growth;
  Chunks chunks;
  int turn = 0;              // stream whose chunk is next
  std::size_t way_turn = 0;  // way that is next where several have as little to carry
  Address address;
  bool linked = false;               // `first` is ready to send and to receive
  std::uint64_t give_up_ns = 0;      // deadline for linking it; 0: connect() wasn't called
  std::uint64_t probe = 0;           // last write of the probe
  std::uint64_t first_probe = 0;     // the small one, which passes even where a switch drops full packets
  std::uint64_t arrivals = 0;        // immediates that have arrived
  std::uint64_t seen = 0;            // arrivals plus completed requests, when last looked at
  std::uint64_t quiet_since_ns = 0;  // time since which `seen` hasn't changed
  std::uint64_t question = 0;        // wr_id of the last empty write that tests whether the peer is alive
  std::string broken;                // first cause of failure; empty while the connection works
  std::size_t broken_way = 0;        // the way by which it came
  bool flushed = false;              // broken by an event or a flushed request: the failed request that caused it may follow
  bool touched = false;              // completions have come since it was last pumped
  std::uint64_t told_ns = 0;         // time from which a failed request is reported: an event of the port may explain it
  std::array<VerbsSend, kQueues> out;
  std::array<VerbsReceive, kQueues> in;
};

/// Largest number of tries to link another queue pair, each of which may take the kernel a second.
inline constexpr int kJoinTries = 3;

/// The adapters and everything that is one per transport.
struct VerbsTransport::Parts {
  VerbsOptions options;
  std::string why_not;
  bool named = false;                              // an option names the ports that may be used: nothing else will do
  std::vector<std::unique_ptr<Adapter>> adapters;  // messages go by the first; empty: why_not says why
  posix::UniqueFd wake;                            // readable when one of several adapters has news
  std::optional<Region> doors;                     // what arrives, then what leaves; all adapters know it
  std::vector<std::unique_ptr<Peer>> peers;
  std::map<int, std::string> unmade;  // why there is no queue pair for a peer, which another transport may reach
  std::vector<Peer*> touched;         // those with Peer::touched
  std::vector<Peer*> linking;         // those of which a queue pair couldn't be linked at once
  RetryLimits limits{};
  QueueLengths lengths = kWhole;   // of each peer's first queue pair
  std::size_t pairs = 1;           // queue pairs by each adapter that carry a peer's payloads
  std::uint32_t first_packet = 0;  // of all queue pairs
  std::uint32_t rounds_since_events = 0;
  std::uint64_t next_question_ns = 0;  // time of the next search for silent peers

  Adapter& first() const { return *adapters.front(); }
  bool has_small_pairs() const { return lengths.sends < kSends; }
  /// Opens the adapters of these ports. Throws Error if the first one can't be used; of others that can't a line tells.
  void open(const std::vector<ChosenPort>& ports);
  /// Opens one more adapter. Throws Error(refused | out_of_memory).
  void open_another(const ChosenPort& port);
};

}  // namespace tsprun::detail::verbs
