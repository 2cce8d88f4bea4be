// Layout of what verbs peers write into each other's memory, and the address blob that they exchange.
//
// Each pair of ranks has one reliable connection, and another one in place of it once it is used if the first is small
// (growing.cpp). Each rank has a door for what a peer tells it first, and for each queue that
// the two use, from its first use on, a ring for what arrives. Of both there is a mirror for what it sends:
//
//   door     ┌ Opened 48 B for each queue ┐                     "here is my ring": written once, when the queue is first used
//   ring     ┌ entry 0 … 15 │ grant 0 … 15 │ Report 1 … 7 ┐      written by the peer in whole entries, each announced by the
//                                                                immediate of its WRITE_WITH_IMM; read by the owner only after
//                                                                that completion
//   entry    ┌ EntryHeader 64 B ┬ payload, up to 8 KiB ┐         message t of a lane lies in entry t % 16
//   grant    ┌ GrantHeader 64 B ┬ up to 64 keys        ┐         "write message t here": one key a slab, for each adapter
//
// All doors of a rank lie in one registered region, at whose start probes land, which nobody reads. A rank writes to a ring only
// after its owner has opened it, and has posted the receives that the queue may need.
//
// An immediate holds what happened (3 bits), the queue (3 bits), and the low 26 bits of the ticket or, for credit, of the number
// of messages taken. That of a payload has fewer of the ticket's bits, and says which part of how many it ends (PartNews).
#pragma once

#include "transport/message.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace tsprun::detail::verbs {

static_assert(std::endian::native == std::endian::little, "peers write structs as they lie in memory");

inline constexpr std::uint32_t kSlots = 16;  ///< messages of a lane in flight
inline constexpr std::size_t kEagerBytes = 8192;
inline constexpr std::size_t kMaxKeys = 64;  ///< slabs that one message may touch: about 4 GiB
inline constexpr int kMostWays = 8;          ///< queue pairs of two ranks that carry payloads, and adapters of a rank

/// Kind of an entry.
enum class EntryKind : std::uint32_t {
  message = 1,
  refused = 3  ///< the sender's envelope, which differs from that of the grant; no payload follows
};

/// Header of an entry; the payload follows.
struct EntryHeader {
  std::uint64_t signature;
  std::uint64_t ticket;
  std::uint64_t taken;  ///< credit: messages of the reverse lane that the writer has finished
  std::uint64_t bytes;
  std::uint64_t unused;
  std::uint32_t sequence;
  std::uint32_t tag;
  EntryKind kind;
  std::uint32_t reserved[3];
};
static_assert(sizeof(EntryHeader) == 64);

/// Header of a grant; `keys` keys of 32 bits follow for each adapter, in order of their numbers. The fields are those of the
/// message expected.
struct GrantHeader {
  std::uint64_t signature;
  std::uint64_t ticket;
  std::uint64_t taken;
  std::uint64_t bytes;
  std::uint64_t address;
  std::uint64_t first_bytes;  ///< bytes that lie under the first key; each further key covers a slab
  std::uint32_t sequence;
  std::uint32_t tag;
  std::uint32_t keys;      ///< number of keys that follow for each adapter
  std::uint32_t adapters;  ///< bit a: keys for adapter a follow; that of number 0 is always among them
};
static_assert(sizeof(GrantHeader) == 64);

/// A ring of the rank that writes this into a peer's door.
struct Opened {
  std::uint64_t address;
  std::uint32_t bytes;  ///< kRingBytes; differs if the peer has another layout
  std::uint32_t unused;
  std::uint32_t keys[kMostWays];  ///< for each adapter of the writer
};
static_assert(sizeof(Opened) == 48);

/// State of a queue at its writer's end once that has closed n ways: what isn't here has to come again (losing.cpp). Each n has a
/// place of its own, so that a copy which comes late, by another way, changes nothing.
/// Sets of messages are bits, by ticket % 64, of those after `prefix`, and of grants after the messages that were taken.
struct Report {
  std::uint64_t prefix;        ///< messages that are finished
  std::uint64_t entries;       ///< entries that lie in the ring
  std::uint64_t done;          ///< messages that are finished, and payloads that have
                               ///< arrived whole
  std::uint64_t grants;        ///< grants that have arrived
  std::uint8_t parts[kSlots];  ///< bit i: part i of the payload of message t, by
                               ///< t % kSlots
  std::uint64_t unused[2];
};
static_assert(sizeof(Report) == 64);

inline constexpr std::size_t kProbeBytes = 64;        ///< of the first probe
inline constexpr std::size_t kFullProbeBytes = 4096;  ///< of the second at most: the largest packet
inline constexpr std::size_t kDoorBytes = kMostQueues * sizeof(Opened);
inline constexpr std::size_t kEntryBytes = sizeof(EntryHeader) + kEagerBytes;
inline constexpr std::size_t kGrantBytes = sizeof(GrantHeader) + kMaxKeys * sizeof(std::uint32_t);
inline constexpr std::size_t kReportOffset = kSlots * (kEntryBytes + kGrantBytes);
inline constexpr std::size_t kRingBytes = kReportOffset + (kMostWays - 1) * sizeof(Report);

/// Return the offset in a ring of a message's entry or grant.
constexpr std::size_t entry_offset(std::uint64_t ticket) { return ticket % kSlots * kEntryBytes; }
constexpr std::size_t grant_offset(std::uint64_t ticket) { return kSlots * kEntryBytes + ticket % kSlots * kGrantBytes; }
/// Returns the offset in a ring of the Report of a rank that has closed these ways, one or more.
constexpr std::size_t report_offset(std::uint32_t lost) {
  return kReportOffset + static_cast<std::size_t>(std::popcount(lost) - 1) * sizeof(Report);
}

inline constexpr std::uint32_t kMostDoors = 1 << 24;  ///< queue pairs have numbers of 24 bits
/// Returns the bytes of the region of a rank's doors for so many peers.
constexpr std::size_t doors_bytes(std::size_t peers) { return kFullProbeBytes + peers * kDoorBytes; }
/// Returns the offset in that region of a peer's door.
constexpr std::size_t door_offset(int peer) { return kFullProbeBytes + static_cast<std::size_t>(peer) * kDoorBytes; }

/// Event that an immediate announces.
enum class News : std::uint32_t {
  entry,   ///< an entry lies in the ring
  grant,   ///< a grant lies in the ring
  data,    ///< the payload of a granted message, or a part of it (PartNews), has arrived in its place
  credit,  ///< messages were taken; the first, of 0 messages on stream 0, is the probe
  opened,  ///< the peer's ring for the queue stands in the door
  whole,   ///< on stream 0, by a pair's first queue pair: the number of the one that shall carry messages instead
  ready,   ///< on stream 0, by the first one: that other queue pair can receive
  join     ///< of another queue pair for payloads, whose number stands for the
           ///< stream: see JoinNews; with number 0: LostNews
};

/// The 32 bits that travel with a WRITE_WITH_IMM.
struct Immediate {
  News news;
  int stream;         ///< below kQueues, or the peer is broken
  std::uint32_t low;  ///< kLowBits bits

  static constexpr int kLowBits = 26;
  static constexpr std::uint32_t kLowMask = (1U << kLowBits) - 1;
  constexpr std::uint32_t encode() const {
    return static_cast<std::uint32_t>(news) << 29 | static_cast<std::uint32_t>(stream) << kLowBits | (low & kLowMask);
  }
  static constexpr Immediate decode(std::uint32_t word) {
    return {static_cast<News>(word >> 29), static_cast<int>(word >> kLowBits & 7), word & kLowMask};
  }
};

/// Returns the number with these low bits, those of `mask`, that is nearest to `near`.
constexpr std::uint64_t widen(std::uint32_t low, std::uint64_t near, std::uint32_t mask = Immediate::kLowMask) {
  const std::uint32_t up = (low - static_cast<std::uint32_t>(near)) & mask;
  if (up <= mask / 2) return near + up;
  const std::uint64_t down = mask + std::uint64_t{1} - up;
  return near >= down ? near - down : near + up;
}

/// The low bits of News::data: a queue pair that has carried chunks of a payload tells so behind them, as one part of so many.
struct PartNews {
  std::uint32_t ticket;  ///< kTicketBits bits
  int part;              ///< from 0
  int parts;             ///< 1 … kMostWays

  static constexpr int kTicketBits = 20;
  static constexpr std::uint32_t kTicketMask = (1U << kTicketBits) - 1;
  constexpr std::uint32_t encode() const {
    return (ticket & kTicketMask) | static_cast<std::uint32_t>(part) << kTicketBits |
           static_cast<std::uint32_t>(parts - 1) << (kTicketBits + 3);
  }
  static constexpr PartNews decode(std::uint32_t low) {
    return {low & kTicketMask, static_cast<int>(low >> kTicketBits & 7), static_cast<int>(low >> (kTicketBits + 3) & 7) + 1};
  }
};

/// The low bits of News::join: how far the writer is with another queue pair for payloads (joining.cpp).
struct JoinNews {
  enum class Step : std::uint32_t {
    number,  ///< it has made its end, which has this number
    linked,  ///< its end is ready to send and to receive
    proved,  ///< its probe has arrived: it carries payloads once the other end's has, too
    left     ///< it leaves this queue pair out
  };
  Step step;
  std::uint32_t number;  ///< 24 bits

  static constexpr int kNumberBits = 24;
  constexpr std::uint32_t encode() const { return static_cast<std::uint32_t>(step) << kNumberBits | number; }
  static constexpr JoinNews decode(std::uint32_t low) {
    return {static_cast<Step>(low >> kNumberBits & 3), low & ((1U << kNumberBits) - 1)};
  }
};

/// The low bits of News::join of number 0: the writer has closed ways, and Reports lie in the rings. Bit w: way w.
struct LostNews {
  std::uint8_t lost;     ///< closed
  std::uint8_t carries;  ///< open, and proved at both ends as far as the writer knows
  std::uint8_t there;    ///< bit s: the writer knows this end's ring of queue s,
                         ///< in which its report lies

  constexpr std::uint32_t encode() const {
    return std::uint32_t{lost} | static_cast<std::uint32_t>(carries) << 8 | static_cast<std::uint32_t>(there) << 16;
  }
  static constexpr LostNews decode(std::uint32_t low) {
    return {static_cast<std::uint8_t>(low), static_cast<std::uint8_t>(low >> 8), static_cast<std::uint8_t>(low >> 16)};
  }
};

/// Begin of an address blob: what is for one peer alone.
struct OwnFields {
  std::uint32_t queue_pair = 0;  ///< 0: there is none for this peer, and `why_not` says why
  std::uint32_t door = 0;        ///< number of the door for this peer
};
static_assert(sizeof(OwnFields) == 8);

/// Where a rank is reached by one of its adapters.
struct PortFields {
  std::uint8_t gid[16] = {};
  std::uint32_t doors_key = 0;  ///< of the region with the doors
  std::uint16_t lid = 0;
  std::uint16_t pkey = 0xffff;  ///< partition
  std::uint8_t mtu = 0;
  std::uint8_t ethernet = 0;      ///< 1: Ethernet, 0: InfiniBand
  std::uint8_t network_bits = 0;  ///< see ChosenPort
  std::uint8_t rail = 0;
  std::uint8_t grh_required = 0;  ///< 1: packets to it need a global routing header
  std::uint8_t padding[3] = {};
};
static_assert(sizeof(PortFields) == 32 && std::is_trivially_copyable_v<PortFields>);

/// Fields that all adapters share. Then come the PortFields and names of those after the first, and the texts.
struct JobFields {
  std::uint32_t magic = 0x38567354;       ///< "TsV8"
  std::uint32_t ring_bytes = kRingBytes;  ///< differs if the peer has another layout of rings
  std::uint64_t doors = 0;                ///< address in its owner of the region with the doors, where probes land
  std::uint32_t first_packet = 0;         ///< packet sequence number, 24 bits, of all queue pairs
  std::uint16_t port_bytes = 0;           ///< of the text `port`
  std::uint16_t why_not_bytes = 0;        ///< of the text `why_not`
  std::uint8_t small = 0;                 ///< 1: its queue pair is too small to carry messages
  std::uint8_t pairs = 1;                 ///< queue pairs by each adapter that carry payloads
  std::uint8_t others = 0;                ///< adapters after the first
  std::uint8_t padding[5] = {};
};
static_assert(sizeof(JobFields) == 32 && std::is_trivially_copyable_v<JobFields>);

/// Adapters after the first one of a rank, in an address.
struct OtherAdapter {
  PortFields port;
  char name[24] = {};  ///< "rxe1:1", for messages; ends with a zero
};
static_assert(sizeof(OtherAdapter) == 56 && std::is_trivially_copyable_v<OtherAdapter>);

/// Facts that a peer needs to connect to this rank. As PortFields it is the rank's first adapter.
struct Address : JobFields, PortFields {
  OwnFields own;
  std::vector<OtherAdapter> rest;  ///< adapters after the first
  std::string port;                ///< for messages: "rxe0 port 1, …"
  std::string why_not;  ///< why the rank has no device, or no queue pair for this peer; if not empty, the other fields are void

  /// Returns the address in its owner of the door for the peer that reads this.
  std::uint64_t door() const { return doors + door_offset(static_cast<int>(own.door)); }
  /// Returns the rank's adapters.
  int adapters() const { return 1 + static_cast<int>(rest.size()); }
  /// Returns where it is reached by one of them, which `port` then names.
  Address by(int adapter) const;

  /// Packs the address into a blob; texts are cut to 200 bytes, and so many adapters are left out as are too many.
  std::vector<std::byte> encode() const;
  /// Unpacks a blob and checks it. Nothing if it isn't one of this version.
  static std::optional<Address> decode(std::span<const std::byte> blob);
};

}  // namespace tsprun::detail::verbs
