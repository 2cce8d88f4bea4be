// The wire format of a TCP connection between ranks: frames, each a header of 64 bytes, followed by payload in `message` and
// `piece`.
//
//    0 ┌───────┬──────┬────────┬───────┬──────────┬─────┐
//      │ magic │ kind │ stream │   0   │ sequence │ tag │
//   16 ├───────┴───┬──┴────┬───┴────┬──┴────┬─────┴─────┴──┬─────────────┐
//      │ signature │ bytes │ ticket │ where │ payload hash │ header hash │
//      └───────────┴───────┴────────┴───────┴──────────────┴─────────────┘ 64
//
//   message    a small message: all `bytes` of its payload follow
//   announce   a large message waits at the sender: its envelope and `bytes`, no payload
//   grant      the receiver has posted a buffer for the large message `ticket`
//   piece      the next part of a granted message follows: kPieceBytes, or what is left from `where` on
//   credit     the receiver has finished all messages up to `ticket`
//   bye        nothing more will be sent; the sender ends in good order
//
// Every payload carries its XXH3 hash and every header its own, so damage is found before anything is used. Both ends are
// little-endian machines with the same version of tsprun; the greeting's magic names the version of the protocol.
#pragma once

#include "transport/checksum.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::detail::tcp {

inline constexpr std::uint32_t kFrameMagic = 0x66505354;  // "TSPf"
inline constexpr std::size_t kEagerBytes = 16384;         ///< largest payload that travels without a grant
inline constexpr std::size_t kPieceBytes = 256 * 1024;    ///< bytes of a piece: lanes take turns, and a piece fits L2
inline constexpr std::uint64_t kWindow = 32;              ///< most unfinished messages of a lane
inline constexpr std::uint64_t kLaneCredit = 256 * 1024;  ///< most bytes of unfinished small messages of a lane

/// Kind of a frame; see the table above.
enum class FrameKind : std::uint8_t { message = 1, announce, grant, piece, credit, bye };

/// Header of a frame, drawn above.
struct FrameHeader {
  std::uint32_t magic;
  std::uint8_t kind;
  std::uint8_t stream;
  std::uint16_t reserved;  ///< 0
  std::uint32_t sequence;
  std::uint32_t tag;
  std::uint64_t signature;
  std::uint64_t bytes;   ///< payload bytes of the whole message
  std::uint64_t ticket;  ///< number of the message on its lane
  std::uint64_t where;   ///< piece: offset in the message; else 0
  std::uint64_t payload_hash;
  std::uint64_t header_hash;  ///< XXH3 of everything before it
};
/// Returns the value that a header's header_hash must have.
inline std::uint64_t hash_of(const FrameHeader& header) {
  return checksum(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, header_hash)));
}

static_assert(sizeof(FrameHeader) == 64 && offsetof(FrameHeader, header_hash) == 56);
static_assert(std::endian::native == std::endian::little);

}  // namespace tsprun::detail::tcp
