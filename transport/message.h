// Lanes, envelopes and tickets: the vocabulary of transports. A lane is an ordered, reliable pipe from one rank to another for
// one stream; lanes between the same two ranks on different streams are independent: they share neither order nor credits. The
// k-th message posted on a lane is matched by the k-th receive or view posted at its other end; a ticket is that number k.
#pragma once

#include "tsprun/types.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tsprun::detail {

/// The queue of messages with a tag, which have lanes of their own beside those of the streams. Its operations have no order.
inline constexpr Stream kTagged = static_cast<Stream>(kStreams);
/// Number of queues of a rank, and of lanes to each peer: the streams, and kTagged.
inline constexpr int kQueues = kStreams + 1;
/// Number of those of which the flight board and what RDMA peers write to each other have room.
inline constexpr int kMostQueues = 8;
static_assert(kQueues <= kMostQueues);

/// Names a lane by the rank at its other end (numbered as the transport numbers its peers) and its stream. The direction
/// follows from the call: sends use the outgoing lane, receives and views the incoming one.
struct LaneId {
  int peer;
  Stream stream;
  auto operator<=>(const LaneId&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 means the 0 of a comparison
};

/// Header of a message, on which both ends must agree. Two envelopes match if signature, sequence and tag are equal. The
/// transport compares them before any byte reaches the caller's buffer, and gives them no other meaning. Consecutive messages
/// of a lane must differ in sequence or tag, so that a lost or doubled message can't pass for its neighbour.
struct Envelope {
  std::uint64_t signature = 0;       ///< hash over all arguments that both ends must have in common
  std::uint32_t sequence = 0;        ///< number of the operation within its group
  std::uint32_t tag = 0;             ///< what the sender is doing, for error messages (core packs op, dtype, reduction, step)
  Purpose purpose = Purpose::other;  ///< for the local counters; not compared

  bool matches(const Envelope& other) const {
    return signature == other.signature && sequence == other.sequence && tag == other.tag;
  }
};

/// Number of a message on its lane, counted from 1. kNotNow: the lane has no credit at present; make progress and post again.
using Ticket = std::uint64_t;
inline constexpr Ticket kNotNow = 0;

/// State of a ticket.
enum class Outcome : std::uint8_t {
  pending,      ///< not yet
  done,         ///< complete: the buffer is the caller's again, or the view may be used
  mismatch,     ///< a different message arrived: see Transport::found()
  corrupt,      ///< the header or the payload is damaged: see Transport::found()
  disconnected  ///< the way to the peer is cut: see Transport::found()
};

/// Description of a failure on a lane: the message that was found instead of the expected one, or why the lane is broken.
struct Found {
  Envelope envelope;
  std::uint64_t bytes = 0;
  std::string detail;  ///< the cause in the transport's own words ("IBV_WC_RETRY_EXC_ERR, vendor 0x81, queue pair 17")
};

}  // namespace tsprun::detail
