// The vocabulary of lanes: streams, envelopes and tickets. A lane is an ordered, reliable pipe from one rank to another for one
// stream. The k-th message posted on a lane is matched by the k-th receive or view posted at its other end; a ticket is that k.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tsprun {

/// Lanes between the same two ranks on different streams are independent of each other: no order, no shared credits.
enum class Stream : std::uint8_t { control, weights, kv, gradients };
inline constexpr int kStreams = 4;
std::string_view name(Stream stream);

/// Which lane: the rank at the other end (numbered as the transport numbers its peers) and the stream. The direction follows from
/// the call: sends and puts use the outgoing lane, receives and views the incoming one.
struct LaneId {
  int peer;
  Stream stream;
};

/// What a payload is for; counters sum by it. The names are those of the JSON report's traffic_bytes. `none` isn't
/// traffic: what a decorator adds to payloads.
enum class Purpose : std::uint8_t { weights, kv, activations, gradients, embedding, head, other, none };
inline constexpr int kPurposes = 7;  ///< that are reported
std::string_view name(Purpose purpose);

/// What both ends must agree on. Two envelopes match if signature, sequence and tag are equal; the transport compares them before
/// any byte reaches a user's buffer and knows nothing more about them. Consecutive messages of a lane differ in sequence or tag,
/// so that a lost or doubled one can't pass for its neighbour.
struct Envelope {
  std::uint64_t signature = 0;  ///< hash over all arguments that both ends must have in common
  std::uint32_t sequence = 0;   ///< number of the operation within its group
  std::uint32_t tag = 0;        ///< what the sender is doing, readable for error messages (core packs op, dtype, reduction, step)
  Purpose purpose = Purpose::other;  ///< for the local counters; not compared

  bool matches(const Envelope& other) const {
    return signature == other.signature && sequence == other.sequence && tag == other.tag;
  }
};

/// Number of a message on its lane, from 1. kNotNow: the lane has no credit at present; make progress and post again.
using Ticket = std::uint64_t;
inline constexpr Ticket kNotNow = 0;

/// What a look at a ticket found.
enum class Outcome : std::uint8_t {
  pending,   ///< not yet
  done,      ///< complete: the buffer is the caller's again, or the view may be used
  mismatch,  ///< another message lies there: see Transport::found()
  corrupt,   ///< the header or the payload is damaged: see Transport::found()
  disconnected
};

/// What lies in a lane's way: the message that was found instead of the expected one, or why the lane is broken.
struct Found {
  Envelope envelope;
  std::uint64_t bytes = 0;
  std::string detail;  ///< the exact cause in the transport's own words ("IBV_WC_RETRY_EXC_ERR, vendor 0x81, queue pair 17")
};

}  // namespace tsprun
