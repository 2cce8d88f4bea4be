// Sends a hash ahead of each payload, and compares it with the hash of what arrives.
#include "transport/verify/verify_transport.h"

#include "transport/checksum.h"

#include <fmt/format.h>

#include <cassert>

namespace tsprun::detail::verify {

namespace {
/// XORed into the signature of announcements, so that one can't match a payload's receive.
constexpr std::uint64_t kAnnounces = 0x9e3779b97f4a7c15;

Envelope of_announcement(Envelope envelope) {
  envelope.signature ^= kAnnounces;
  envelope.purpose = Purpose::none;
  return envelope;
}
}  // namespace

// --- sending -----------------------------------------------------------------------------------------------------------------

/// Sends the announcement, unless it was sent already: a caller whose payload found no credit posts the same payload again.
/// Returns false if the announcement finds no credit.
bool VerifyTransport::announce(VerifiedSend& out, LaneId lane, const Envelope& envelope, std::span<const std::byte> payload) {
  if (out.announced) return true;
  const Announcement announcement{checksum(payload), payload.size()};
  const Ticket below =
      inner().send(lane, of_announcement(envelope), std::as_bytes(std::span(&announcement, 1)), Delivery::copy_if_small);
  out.announced = below != kNotNow;
  assert(!out.announced || below == 2 * out.last + 1);
  return out.announced;
}

Ticket VerifyTransport::sent(VerifiedSend& out, Ticket below) {
  if (below == kNotNow) return kNotNow;
  out.announced = false;
  assert(below == 2 * (out.last + 1));
  return ++out.last;
}

Ticket VerifyTransport::send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload, Delivery delivery) {
  VerifiedSend& out = outgoing_[lane];
  if (!announce(out, lane, envelope, payload)) return kNotNow;
  return sent(out, inner().send(lane, envelope, payload, delivery));
}

// --- receiving ---------------------------------------------------------------------------------------------------------------

bool VerifyTransport::expect_announcement(VerifiedReceive& in, LaneId lane, const Expected& expected) {
  if (in.announced) return true;
  in.expected.push_back(expected);
  const Ticket below = inner().receive(lane, of_announcement(expected.envelope),
                                       std::as_writable_bytes(std::span(&in.expected.back().announcement, 1)));
  if (below == kNotNow) in.expected.pop_back();
  in.announced = below != kNotNow;
  return in.announced;
}

Ticket VerifyTransport::posted(VerifiedReceive& in, Ticket below) {
  if (below == kNotNow) return kNotNow;
  in.announced = false;
  const Ticket ticket = in.first + in.expected.size() - 1;
  assert(below == 2 * ticket);
  return ticket;
}

Ticket VerifyTransport::receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) {
  VerifiedReceive& in = incoming_[lane];
  if (!expect_announcement(in, lane, {.envelope = envelope, .bytes = into.data(), .count = into.size()})) return kNotNow;
  return posted(in, inner().receive(lane, envelope, into));
}

Ticket VerifyTransport::view(LaneId lane, const Envelope& envelope, std::size_t bytes) {
  VerifiedReceive& in = incoming_[lane];
  if (!expect_announcement(in, lane, {.envelope = envelope, .count = bytes, .is_view = true})) return kNotNow;
  return posted(in, inner().view(lane, envelope, bytes));
}

Outcome VerifyTransport::test_receive(LaneId lane, Ticket ticket) {
  VerifiedReceive& in = incoming_[lane];
  if (ticket < in.first) return Outcome::done;
  Expected& expected = in.expected[ticket - in.first];
  if (expected.checked) return Outcome::done;
  if (in.damaged) return Outcome::corrupt;
  const Outcome announced = inner().test_receive(lane, 2 * ticket - 1);
  const Outcome arrived = announced == Outcome::pending ? Outcome::pending : inner().test_receive(lane, 2 * ticket);
  // If the message isn't an announcement, the next one tells better what the peer is doing.
  if (announced != Outcome::done) return announced;
  if (arrived != Outcome::done) return arrived;
  return check(in, lane, ticket, expected);
}

/// Compares the hash of a payload that has arrived with that of its announcement.
Outcome VerifyTransport::check(VerifiedReceive& in, LaneId lane, Ticket ticket, Expected& expected) {
  if (expected.is_view && expected.count != 0) expected.bytes = inner().access(lane, 2 * ticket, 0, expected.count).data();
  const std::uint64_t hash = checksum({expected.bytes, expected.count});
  if (hash != expected.announcement.hash || expected.count != expected.announcement.bytes) {
    in.damaged = true;
    in.found = {expected.envelope, expected.count,
                fmt::format("the XXH3 hash of its {} bytes is {:016x}, the sender's {} bytes had {:016x}", expected.count, hash,
                            expected.announcement.bytes, expected.announcement.hash)};
    return Outcome::corrupt;
  }
  expected.checked = true;
  if (!expected.is_view) finish(in, expected);
  return Outcome::done;
}

void VerifyTransport::finish(VerifiedReceive& in, Expected& expected) {
  expected.finished = true;
  while (!in.expected.empty() && in.expected.front().finished) {
    in.expected.pop_front();
    ++in.first;
  }
}

std::span<const std::byte> VerifyTransport::access(LaneId lane, Ticket ticket, std::size_t offset, std::size_t bytes) {
  const VerifiedReceive& in = incoming_[lane];
  const Expected& expected = in.expected[ticket - in.first];
  assert(expected.checked && offset <= expected.count && bytes <= expected.count - offset);
  return {expected.bytes + offset, bytes};
}

void VerifyTransport::release(LaneId lane, Ticket ticket) {
  VerifiedReceive& in = incoming_[lane];
  inner().release(lane, 2 * ticket);
  finish(in, in.expected[ticket - in.first]);
}

Found VerifyTransport::found(LaneId lane) const {
  const auto in = incoming_.find(lane);
  if (in != incoming_.end() && in->second.damaged) return in->second.found;
  Found found = inner().found(lane);
  if (in == incoming_.end()) return found;
  // Report the payload instead of the announcement, which callers don't know.
  for (const Expected& expected : in->second.expected) {
    if (found.envelope.signature == (expected.envelope.signature ^ kAnnounces)) found.envelope.signature ^= kAnnounces;
  }
  return found;
}

}  // namespace tsprun::detail::verify
