// The lanes of a connection as the transport calls them: posting and testing of messages.
#include "transport/tcp/connection.h"

#include <cassert>
#include <cstring>
#include <fmt/format.h>

namespace tsprun::detail::tcp {

namespace {
constexpr std::uint64_t bit(Ticket ticket) { return std::uint64_t{1} << (ticket % 64); }
}  // namespace

void Connection::start(tls::Channel channel, int epoll, std::uint64_t token) {
  channel_ = std::move(channel);
  epoll_ = epoll;
  token_ = token;
  write();
  // The peer's first frames may have arrived together with its proof.
  if (channel_.holds_input()) read();
}

void Connection::fail(Outcome outcome, const std::string& detail) {
  if (outcome_ != Outcome::pending) return;
  outcome_ = outcome;
  detail_ = detail;
  if (live()) pacing_->remove(channel_.descriptor());
  channel_.reset();  // closing the socket removes it from the epoll set
}

// --- sending -----------------------------------------------------------------------------------------------------------------

Ticket Connection::send(Stream stream, const Envelope& envelope, std::span<const std::byte> payload) {
  TcpSend& lane = out(stream);
  const bool small = payload.size() <= kEagerBytes;
  const bool lost = outcome_ != Outcome::pending;
  if (!lost) {
    if (lane.last - lane.consumed >= kWindow) return kNotNow;
    if (small && lane.small_bytes + payload.size() > kLaneCredit) return kNotNow;
  }
  const Ticket ticket = ++lane.last;
  Sent& sent = lane.sent[ticket % kWindow];
  sent = {.envelope = envelope, .data = payload.data(), .bytes = payload.size(), .small = small, .lost = lost};
  if (lost) return ticket;
  lane.last_alive = ticket;
  counters_->sent[static_cast<std::size_t>(envelope.purpose)] += payload.size();
  FrameHeader header{};
  header.kind = static_cast<std::uint8_t>(small ? FrameKind::message : FrameKind::announce);
  header.stream = static_cast<std::uint8_t>(stream);
  header.sequence = envelope.sequence;
  header.tag = envelope.tag;
  header.signature = envelope.signature;
  header.bytes = payload.size();
  header.ticket = ticket;
  if (small) {
    sent.written = sent.bytes;
    lane.small_bytes += sent.bytes;
    queue(header, payload);
  } else {
    ++large_;
    queue(header);
  }
  write();
  return ticket;
}

Outcome Connection::test_send(Stream stream, Ticket ticket) const {
  const TcpSend& lane = outgoing_[static_cast<std::size_t>(stream)];
  assert(ticket != kNotNow && ticket <= lane.last);
  const Sent& sent = lane.sent[ticket % kWindow];
  // A later message uses its slot, so the peer has finished this one, even if the connection has failed since.
  if (ticket + kWindow <= lane.last_alive) return Outcome::done;
  if (ticket + kWindow <= lane.last) return outcome_;
  if (!sent.lost && sent.written == sent.bytes) return Outcome::done;
  return unfinished();
}

// --- receiving ---------------------------------------------------------------------------------------------------------------

Ticket Connection::receive(Stream stream, const Envelope& envelope, std::span<std::byte> into) {
  TcpReceive& lane = in(stream);
  if (lane.posted - lane.prefix >= kWindow) return kNotNow;
  const Ticket ticket = ++lane.posted;
  Expected& expected = lane.expected[ticket % kWindow];
  expected = {.envelope = envelope, .into = into.data(), .bytes = into.size()};
  if (ticket <= lane.arrived) {
    match(stream, ticket, lane.waiting[ticket % kWindow].payload);
  } else if (into.size() > kEagerBytes) {
    expected.granted = true;
    tell(FrameKind::grant, stream, ticket);
  }
  return ticket;
}

Outcome Connection::test_receive(Stream stream, Ticket ticket) const {
  const TcpReceive& lane = incoming_[static_cast<std::size_t>(stream)];
  assert(ticket != kNotNow && ticket <= lane.posted);
  if (ticket <= lane.prefix || (lane.finished & bit(ticket)) != 0) return Outcome::done;
  return lane.outcome != Outcome::pending ? lane.outcome : unfinished();
}

Found Connection::found(Stream stream) const {
  Found found = incoming_[static_cast<std::size_t>(stream)].found;
  if (found.detail.empty()) found.detail = detail_.empty() && heard_bye_ ? "the peer ended in good order" : detail_;
  return found;
}

std::optional<Found> Connection::unreceived(Stream stream) const {
  const TcpReceive& lane = incoming_[static_cast<std::size_t>(stream)];
  if (!heard_bye_ || lane.arrived <= lane.posted) return std::nullopt;
  const FrameHeader& header = lane.waiting[(lane.posted + 1) % kWindow].header;
  return Found{.envelope = {header.signature, header.sequence, header.tag, Purpose::none}, .bytes = header.bytes, .detail = {}};
}

/// Matches a message that has arrived (or was announced) with its receive: compares the envelopes, then checks and takes the
/// payload or grants it.
void Connection::match(Stream stream, Ticket ticket, std::span<std::byte> payload) {
  TcpReceive& lane = in(stream);
  Expected& expected = lane.expected[ticket % kWindow];
  const FrameHeader& header = lane.waiting[ticket % kWindow].header;
  if (!compare(lane, expected, header)) return;
  if (header.kind == static_cast<std::uint8_t>(FrameKind::message)) {
    if (!payload.empty()) {
      if (!is_whole(header, payload)) {
        lane.outcome = Outcome::corrupt;  // what came behind it on this lane isn't taken either
        damaged(fmt::format("a message of {} bytes on stream {} is damaged: its hash is wrong", payload.size(), name(stream)));
        return;
      }
      std::memcpy(expected.into, payload.data(), payload.size());
    }
    finish(stream, ticket);
  } else if (!expected.granted) {
    expected.granted = true;
    tell(FrameKind::grant, stream, ticket);
  }
}

/// Returns true if a message is the one expected; otherwise notes the mismatch. Called before any byte reaches the caller's
/// buffer.
bool Connection::compare(TcpReceive& lane, const Expected& expected, const FrameHeader& header) {
  if (lane.outcome != Outcome::pending) return false;
  const Envelope arrived{header.signature, header.sequence, header.tag, expected.envelope.purpose};
  if (!arrived.matches(expected.envelope) || header.bytes != expected.bytes) {
    lane.outcome = Outcome::mismatch;
    lane.found = {arrived, header.bytes, {}};
    return false;
  }
  return true;
}

void Connection::finish(Stream stream, Ticket ticket) {
  TcpReceive& lane = in(stream);
  const Expected& expected = lane.expected[ticket % kWindow];
  counters_->received[static_cast<std::size_t>(expected.envelope.purpose)] += expected.bytes;
  lane.finished |= bit(ticket);
  while ((lane.finished & bit(lane.prefix + 1)) != 0) {
    ++lane.prefix;
    lane.finished &= ~bit(lane.prefix);
    if (const std::uint64_t bytes = lane.expected[lane.prefix % kWindow].bytes; bytes <= kEagerBytes) lane.untold_bytes += bytes;
  }
  if (lane.prefix - lane.told < kWindow / 4 && lane.untold_bytes < kLaneCredit / 4) return;
  lane.told = lane.prefix;
  lane.untold_bytes = 0;
  tell(FrameKind::credit, stream, lane.prefix);
}

/// Sends a frame that is its header alone.
void Connection::tell(FrameKind kind, Stream stream, Ticket ticket) {
  FrameHeader header{};
  header.kind = static_cast<std::uint8_t>(kind);
  header.stream = static_cast<std::uint8_t>(stream);
  header.ticket = ticket;
  queue(header);
  write();
}

}  // namespace tsprun::detail::tcp
