// Layout of what verbs peers write into each other's memory, and the address blob that they exchange.
//
// Each pair of ranks has one reliable connection. Each of them has a region of memory for what arrives, and a mirror of it for
// what it sends:
//
//   region   ┌ probe 64 B ┬ queue 0 ──────────────────────┬ queue 1 … 4  ┐   written by the peer in whole entries, each announced
//            │            │ entry 0 … 15 │ grant 0 … 15   │              │   by the immediate of its WRITE_WITH_IMM; read by the
//            └────────────┴──────────────┴────────────────┴──────────────┘   owner only after that completion
//   entry    ┌ EntryHeader 64 B ┬ payload, up to 8 KiB ┐        message t of a lane lies in entry t % 16
//   grant    ┌ GrantHeader 64 B ┬ up to 64 keys        ┐        "write message t here": one key a slab
//
// An immediate holds what happened (2 bits), the queue (3 bits), and the low 27 bits of the ticket or, for credit, of the number
// of messages taken.
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

/// Header of a grant; `keys` keys of 32 bits follow. The fields are those of the message expected.
struct GrantHeader {
  std::uint64_t signature;
  std::uint64_t ticket;
  std::uint64_t taken;
  std::uint64_t bytes;
  std::uint64_t address;
  std::uint64_t first_bytes;  ///< bytes that lie under the first key; each further key covers a slab
  std::uint32_t sequence;
  std::uint32_t tag;
  std::uint32_t keys;  ///< number of keys that follow
  std::uint32_t reserved;
};
static_assert(sizeof(GrantHeader) == 64);

inline constexpr std::size_t kProbeBytes = 64;
inline constexpr std::size_t kEntryBytes = sizeof(EntryHeader) + kEagerBytes;
inline constexpr std::size_t kGrantBytes = sizeof(GrantHeader) + kMaxKeys * sizeof(std::uint32_t);
inline constexpr std::size_t kStreamBytes = kSlots * (kEntryBytes + kGrantBytes);
inline constexpr std::size_t kRegionBytes = kProbeBytes + kQueues * kStreamBytes;

/// Return the offset in the region of a message's entry or grant.
constexpr std::size_t entry_offset(int stream, std::uint64_t ticket) {
  return kProbeBytes + static_cast<std::size_t>(stream) * kStreamBytes + ticket % kSlots * kEntryBytes;
}
constexpr std::size_t grant_offset(int stream, std::uint64_t ticket) {
  return kProbeBytes + static_cast<std::size_t>(stream) * kStreamBytes + kSlots * kEntryBytes + ticket % kSlots * kGrantBytes;
}

/// Event that an immediate announces.
enum class News : std::uint32_t {
  entry,  ///< an entry lies in the region
  grant,  ///< a grant lies in the region
  data,   ///< the payload of a granted message has arrived in its place
  credit  ///< messages were taken; the first, of 0 messages on stream 0, is the probe
};

/// The 32 bits that travel with a WRITE_WITH_IMM.
struct Immediate {
  News news;
  int stream;         ///< below kQueues, or the peer is broken
  std::uint32_t low;  ///< kLowBits bits

  static constexpr int kLowBits = 27;
  static constexpr std::uint32_t kLowMask = (1U << kLowBits) - 1;
  constexpr std::uint32_t encode() const {
    return static_cast<std::uint32_t>(news) << 30 | static_cast<std::uint32_t>(stream) << kLowBits | (low & kLowMask);
  }
  static constexpr Immediate decode(std::uint32_t word) {
    return {static_cast<News>(word >> 30), static_cast<int>(word >> kLowBits & 7), word & kLowMask};
  }
};

/// Returns the number with these low bits that is nearest to `near`.
constexpr std::uint64_t widen(std::uint32_t low, std::uint64_t near) {
  const std::uint32_t up = (low - static_cast<std::uint32_t>(near)) & Immediate::kLowMask;
  if (up <= Immediate::kLowMask / 2) return near + up;
  const std::uint64_t down = Immediate::kLowMask + std::uint64_t{1} - up;
  return near >= down ? near - down : near + up;
}

/// Begin of an address blob; its texts follow.
struct AddressFields {
  std::uint32_t magic = 0x34567354;           ///< "TsV4"
  std::uint32_t region_bytes = kRegionBytes;  ///< differs if the peer has another layout of the region
  std::uint64_t region = 0;                   ///< address of the region in its owner
  std::uint32_t queue_pair = 0;
  std::uint32_t first_packet = 0;  ///< packet sequence number, 24 bits
  std::uint32_t region_key = 0;
  std::uint16_t lid = 0;
  std::uint8_t mtu = 0;
  std::uint8_t ethernet = 0;  ///< 1: Ethernet, 0: InfiniBand
  std::uint8_t gid[16] = {};
  std::uint8_t network_bits = 0;  ///< see ChosenPort
  std::uint8_t rail = 0;
  std::uint16_t port_bytes = 0;     ///< of the text `port`
  std::uint16_t why_not_bytes = 0;  ///< of the text `why_not`
  std::uint16_t pkey = 0xffff;      ///< partition
  std::uint8_t grh_required = 0;    ///< 1: packets to it need a global routing header
  std::uint8_t padding[7] = {};
};
static_assert(sizeof(AddressFields) == 64 && std::is_trivially_copyable_v<AddressFields>);

/// Facts that a peer needs to connect to this rank.
struct Address : AddressFields {
  std::string port;     ///< for messages: "rxe0 port 1, …"
  std::string why_not;  ///< why the rank has no device; if not empty, the other fields are void

  /// Packs the address into a blob; texts are cut to 200 bytes.
  std::vector<std::byte> encode() const;
  /// Unpacks a blob and checks it. Nothing if it isn't one of this version.
  static std::optional<Address> decode(std::span<const std::byte> blob);
};

}  // namespace tsprun::detail::verbs
