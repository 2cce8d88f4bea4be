// What travels over a tcp connection: frames, each a header of 64 bytes and, for `message` and `piece`, payload behind it.
//
//    0 ┌───────┬──────┬────────┬───────┬──────────┬─────┐
//      │ magic │ kind │ stream │ flags │ sequence │ tag │
//   16 ├───────┴───┬──┴────┬───┴────┬──┴────┬─────┴─────┴──┬─────────────┐
//      │ signature │ bytes │ ticket │ where │ payload hash │ header hash │
//      └───────────┴───────┴────────┴───────┴──────────────┴─────────────┘ 64
//
//   message    a small message, whole: `bytes` of payload follow
//   announce   a large message waits at the sender: its envelope and `bytes`, no payload
//   grant      the receiver has posted a buffer for the large message `ticket`
//   piece      the next part of a granted message follows: kPieceBytes, or what is left from `where` on
//   credit     all messages up to `ticket` are finished
//   bye        nothing more will be sent; the sender ended in good order
//
// Every payload carries its XXH3 hash, every header its own, so damage is found before it can mislead. Both ends are
// little-endian machines of one build (the greeting's magic says so).
#pragma once

#include "transport/checksum.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun::tcp {

inline constexpr std::uint32_t kFrameMagic = 0x66505354;  // "TSPf"
inline constexpr std::size_t kEagerBytes = 16384;         ///< largest payload that travels without a grant
inline constexpr std::size_t kPieceBytes = 256 * 1024;    ///< granted payloads go in pieces: for turns of lanes, and L2
inline constexpr std::uint64_t kWindow = 32;              ///< messages of a lane that aren't finished yet, at most
inline constexpr std::uint64_t kLaneCredit = 256 * 1024;  ///< bytes of small messages of a lane that aren't finished yet, at most

enum class FrameKind : std::uint8_t { message = 1, announce, grant, piece, credit, bye };

inline constexpr std::uint16_t kFlagPut = 1;  ///< the payload is a put to `where`

struct FrameHeader {
  std::uint32_t magic;
  std::uint8_t kind;
  std::uint8_t stream;
  std::uint16_t flags;
  std::uint32_t sequence;
  std::uint32_t tag;
  std::uint64_t signature;
  std::uint64_t bytes;   ///< of the whole message
  std::uint64_t ticket;  ///< its number on the lane
  std::uint64_t where;   ///< message, announce of a put: the address in the receiver; piece: offset in the message
  std::uint64_t payload_hash;
  std::uint64_t header_hash;  ///< XXH3 of everything before it
};
/// What a header's header_hash must be.
inline std::uint64_t hash_of(const FrameHeader& header) {
  return checksum(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, header_hash)));
}

static_assert(sizeof(FrameHeader) == 64 && offsetof(FrameHeader, header_hash) == 56);
static_assert(std::endian::native == std::endian::little);

}  // namespace tsprun::tcp
