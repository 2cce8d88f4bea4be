// The receiver's half of VerbsTransport: posted receives, grants, credits, and the check of messages that arrive.
#include "transport/cause.h"
#include "transport/verbs/judgement.h"
#include "transport/verbs/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>

namespace tsprun::detail::verbs {

Ticket VerbsTransport::post(LaneId lane, const Envelope& envelope, std::byte* into, std::size_t bytes, Want want) {
  VerbsReceive& in = incoming(lane);
  if (in.last - in.prefix >= kSlots) return kNotNow;
  Peer& from = peer(lane.peer);
  const int stream = static_cast<int>(lane.stream);
  if (from.broken.empty() && from.ring(stream) == nullptr) open(from, stream);
  const Ticket ticket = ++in.last;
  in.posted[ticket % kSlots] = {envelope, into, bytes, want};
  if (want == Want::grant) {
    in.to_grant |= bit(ticket);
    if (from.broken.empty()) write_grants(from, stream);
  }
  return ticket;
}

Ticket VerbsTransport::receive(LaneId lane, const Envelope& envelope, std::span<std::byte> into) {
  if (into.size() <= kEagerBytes) return post(lane, envelope, into.data(), into.size(), Want::copy);
  if (!is_registered(into)) {
    throw Error(Cause::refused,
                fmt::format("verbs: {} bytes can only be received into registered memory; plain memory is good for {}",
                            into.size(), kEagerBytes));
  }
  if (into.size() > (kMaxKeys - 1) * kSlabBytes) {
    throw Error(Cause::refused,
                fmt::format("verbs: {} bytes in one message; {} are the most", into.size(), (kMaxKeys - 1) * kSlabBytes));
  }
  return post(lane, envelope, into.data(), into.size(), Want::grant);
}

/// Writes grants, which tell the sender where large messages must go, as far as the send queue has room.
void VerbsTransport::write_grants(Peer& to, int stream) {
  VerbsReceive& in = to.in[static_cast<std::size_t>(stream)];
  if (!to.is_open(stream)) return;
  for (Ticket ticket = in.prefix + 1; ticket <= in.last && in.to_grant != 0; ++ticket) {
    if ((in.to_grant & bit(ticket)) == 0) continue;
    if (!to.ready || to.pair->room() == 0 || !to.pair->is_completed(in.grant_request[ticket % kSlots])) return;
    const Posted& posted = in.posted[ticket % kSlots];
    const std::size_t offset = grant_offset(ticket);
    std::byte* const place = to.ring(stream)->leaving(offset);
    GrantHeader grant{.signature = posted.envelope.signature,
                      .ticket = ticket,
                      .taken = in.prefix,
                      .bytes = posted.bytes,
                      .address = reinterpret_cast<std::uint64_t>(posted.into),
                      .first_bytes = 0,
                      .sequence = posted.envelope.sequence,
                      .tag = posted.envelope.tag,
                      .keys = 0,
                      .adapters = 0};
    const std::size_t keys = put_keys(to, posted, grant, place + sizeof grant);
    std::memcpy(place, &grant, sizeof grant);
    const std::uint64_t request =
        to.mirror(stream, offset, sizeof grant + keys * sizeof(std::uint32_t),
                  Immediate{News::grant, stream, static_cast<std::uint32_t>(ticket & Immediate::kLowMask)}, true);
    in.to_grant &= ~bit(ticket);
    in.granted |= bit(ticket);
    in.parts[ticket % kSlots] = {};
    in.grant_way[ticket % kSlots] = static_cast<std::uint8_t>(to.main);
    in.grant_request[ticket % kSlots] = request;
    if (request == 0) return lose(to, to.main, to.pair->post_error());
    in.told = in.prefix;
  }
}

/// Puts the keys of a receive's memory into its grant: for the first adapter, and for each that this end has in common with the
/// peer, which may carry payloads by then, as long as there is room. Returns their number.
std::size_t VerbsTransport::put_keys(const Peer& to, const Posted& posted, GrantHeader& grant, std::byte* keys) const {
  std::size_t count = 0;
  for (std::size_t adapter = 0; adapter < parts_->adapters.size(); ++adapter) {
    const Slabs& slabs = *parts_->adapters[adapter]->slabs;
    bool is_used = adapter == 0;
    for (std::size_t way = 1; way < to.ways(); ++way)
      is_used = is_used || (to.adapter_of(way) == adapter && (to.lost >> way & 1) == 0);
    if (!is_used || count + grant.keys > kMaxKeys || !slabs.covers({posted.into, posted.bytes})) continue;
    for (std::size_t covered = 0; covered < posted.bytes; ++count) {
      const Slabs::Piece piece = slabs.piece({posted.into + covered, posted.bytes - covered});
      std::memcpy(keys + count * sizeof piece.remote_key, &piece.remote_key, sizeof piece.remote_key);
      if (covered == 0) grant.first_bytes = piece.bytes;
      covered += piece.bytes;
    }
    if (adapter == 0) grant.keys = static_cast<std::uint32_t>(count);
    grant.adapters |= 1U << adapter;
  }
  return count;
}

void VerbsTransport::write_credit(Peer& to, int stream) {
  VerbsReceive& in = to.in[static_cast<std::size_t>(stream)];
  if (!to.ready || !to.broken.empty() || to.pair->room() == 0) return;
  in.told = in.prefix;
  const Immediate credit{News::credit, stream, static_cast<std::uint32_t>(in.prefix & Immediate::kLowMask)};
  if (to.nudge(to.main, credit, false) == 0) lose(to, to.main, to.pair->post_error());
}

/// Marks a message as finished. Messages may be finished in any order; the sender is told the longest finished prefix.
void VerbsTransport::finish(Peer& from, int stream, Ticket ticket) {
  VerbsReceive& in = from.in[static_cast<std::size_t>(stream)];
  in.finished |= bit(ticket);
  in.entries &= ~bit(ticket);
  in.data &= ~bit(ticket);
  in.granted &= ~bit(ticket);
  while ((in.finished & bit(in.prefix + 1)) != 0) {
    ++in.prefix;
    in.finished &= ~bit(in.prefix);
  }
  pump(from);
}

/// Checks an entry that has arrived against what was expected, then copies its payload.
Outcome VerbsTransport::inspect(Peer& from, int stream, Ticket ticket) {
  VerbsReceive& in = from.in[static_cast<std::size_t>(stream)];
  const Posted& posted = in.posted[ticket % kSlots];
  const std::byte* place = from.ring(stream)->arriving(entry_offset(ticket));
  EntryHeader header;
  std::memcpy(&header, place, sizeof header);
  const Envelope arrived{header.signature, header.sequence, header.tag, posted.envelope.purpose};
  in.found = {arrived, header.bytes, {}};
  const Outcome outcome = judge_entry(header, ticket, {posted.envelope, posted.bytes});
  if (outcome == Outcome::done && header.bytes != 0) std::memcpy(posted.into, place + sizeof header, header.bytes);
  return outcome;
}

Outcome VerbsTransport::test_receive(LaneId lane, Ticket ticket) {
  Peer& from = peer(lane.peer);
  const int stream = static_cast<int>(lane.stream);
  VerbsReceive& in = incoming(lane);
  assert(ticket != kNotNow && ticket <= in.last);
  if (ticket <= in.prefix || (in.finished & bit(ticket)) != 0) return Outcome::done;
  if ((in.entries & bit(ticket)) != 0) {
    if (const Outcome outcome = inspect(from, stream, ticket); outcome != Outcome::done) return outcome;
  } else if ((in.data & bit(ticket)) == 0) {
    return unless_broken(from);
  }
  const Posted& posted = in.posted[ticket % kSlots];
  counters_.received[static_cast<std::size_t>(posted.envelope.purpose)] += posted.bytes;
  finish(from, stream, ticket);
  return Outcome::done;
}

std::optional<Found> VerbsTransport::unreceived(LaneId lane) const {
  const VerbsReceive& in = incoming(lane);
  const Ticket next = in.last + 1;
  if ((in.entries & bit(next)) == 0) return std::nullopt;
  EntryHeader header;
  std::memcpy(&header, peer(lane.peer).ring(static_cast<int>(lane.stream))->arriving(entry_offset(next)), sizeof header);
  return Found{.envelope = {header.signature, header.sequence, header.tag, Purpose::none}, .bytes = header.bytes, .detail = {}};
}

}  // namespace tsprun::detail::verbs
