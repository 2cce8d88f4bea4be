// The sender's half of VerbsTransport: entries, and the answers to grants.
#include "transport/cause.h"
#include "transport/verbs/judgement.h"
#include "transport/verbs/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

namespace tsprun::detail::verbs {

namespace {

/// Work requests that new messages leave free in the send queue for grants and credits.
constexpr std::uint64_t kReserve = 64;

/// Returns the bytes of a payload's chunks: as many chunks for each of the ways that it may use, unless they were too small.
std::size_t chunk_bytes(std::size_t payload, std::uint32_t ways) {
  constexpr std::size_t kPage = 4096;
  const auto count = static_cast<std::size_t>(std::popcount(ways));
  if (count == 1) return kChunkBytes;
  const std::size_t chunks = ((payload + kChunkBytes - 1) / kChunkBytes + count - 1) / count * count;
  return std::max(kLeastChunkBytes, ((payload + chunks - 1) / chunks + kPage - 1) / kPage * kPage);
}

}  // namespace

/// Returns the next ticket of a lane if a message may be posted, or held until the peer has opened the queue, else kNotNow. A
/// broken lane always has a ticket: its test tells that the lane is broken. Throws as open().
Ticket VerbsTransport::begin_send(Peer& to, LaneId lane) {
  const VerbsSend& out = outgoing(lane);
  const Ticket ticket = out.last + 1;
  const int stream = static_cast<int>(lane.stream);
  if (to.broken.empty() && to.ring(stream) == nullptr) open(to, stream);
  if (!to.broken.empty()) return ticket;
  if (out.last - out.taken >= kSlots) return kNotNow;
  if (!to.is_open(stream)) return ticket;
  if (to.is_moving()) return kNotNow;
  if (to.pair->room() <= kReserve) return kNotNow;
  // The entry in the mirror may be overwritten only when the NIC won't read the old one any more.
  const std::uint64_t before = out.request[ticket % kSlots];
  return to.pair->is_completed(before) ? ticket : kNotNow;
}

/// Prepares an entry in the mirror, and posts it once the peer has opened the queue.
void VerbsTransport::write_entry(Peer& to, LaneId lane, Ticket ticket, const Envelope& envelope,
                                 std::span<const std::byte> payload, std::uint64_t bytes, std::uint32_t kind, bool signalled) {
  const int stream = static_cast<int>(lane.stream);
  std::byte* const place = to.ring(stream)->leaving(entry_offset(ticket));
  const EntryHeader header{.signature = envelope.signature,
                           .ticket = ticket,
                           .taken = 0,
                           .bytes = bytes,
                           .unused = 0,
                           .sequence = envelope.sequence,
                           .tag = envelope.tag,
                           .kind = static_cast<EntryKind>(kind),
                           .reserved = {}};
  std::memcpy(place, &header, sizeof header);
  if (!payload.empty()) std::memcpy(place + sizeof header, payload.data(), payload.size());
  const std::size_t whole = sizeof header + payload.size();
  static_assert(kEntryBytes <= std::numeric_limits<std::uint16_t>::max());
  VerbsSend& out = outgoing(lane);
  out.entry_bytes[ticket % kSlots] = static_cast<std::uint16_t>(whole);
  if (to.is_open(stream)) return post_entry(to, stream, ticket, whole, signalled);
  out.held |= bit(ticket);
}

/// Posts an entry that lies in the mirror, with the credit of this moment.
void VerbsTransport::post_entry(Peer& to, int stream, Ticket ticket, std::size_t bytes, bool signalled) {
  VerbsReceive& in = to.in[static_cast<std::size_t>(stream)];
  const std::size_t offset = entry_offset(ticket);
  std::memcpy(to.ring(stream)->leaving(offset) + offsetof(EntryHeader, taken), &in.prefix, sizeof in.prefix);
  in.told = in.prefix;
  to.out[static_cast<std::size_t>(stream)].entry_way[ticket % kSlots] = static_cast<std::uint8_t>(to.main);
  const std::uint64_t request = to.mirror(
      stream, offset, bytes, Immediate{News::entry, stream, static_cast<std::uint32_t>(ticket & Immediate::kLowMask)}, signalled);
  if (request == 0) return lose(to, to.main, to.pair->post_error());
  to.out[static_cast<std::size_t>(stream)].request[ticket % kSlots] = request;
}

/// Posts the entries that were held until the peer had opened the queue, oldest first, as far as the send queue has room.
void VerbsTransport::post_held(Peer& to, int stream) {
  VerbsSend& out = to.out[static_cast<std::size_t>(stream)];
  if (!to.is_open(stream)) return;
  for (Ticket ticket = out.taken + 1; ticket <= out.last && out.held != 0; ++ticket) {
    if ((out.held & bit(ticket)) == 0) continue;
    if (!to.ready || to.pair->room() == 0 || !to.broken.empty()) return;
    out.held &= ~bit(ticket);
    post_entry(to, stream, ticket, out.entry_bytes[ticket % kSlots], false);
  }
}

Ticket VerbsTransport::send(LaneId lane, const Envelope& envelope, std::span<const std::byte> payload, Delivery /*delivery*/) {
  Peer& to = peer(lane.peer);
  VerbsSend& out = outgoing(lane);
  const bool large = payload.size() > kEagerBytes;
  if (large && !is_registered(payload)) {
    throw Error(Cause::refused,
                fmt::format("verbs: {} bytes can only be sent from registered memory; plain memory is good for {}",
                            payload.size(), kEagerBytes));
  }
  const Ticket ticket = begin_send(to, lane);
  if (ticket == kNotNow) return kNotNow;
  out.last = ticket;
  out.copied &= ~bit(ticket);
  out.written &= ~bit(ticket);
  out.request[ticket % kSlots] = 0;
  if (!to.broken.empty()) return ticket;
  counters_.sent[static_cast<std::size_t>(envelope.purpose)] += payload.size();
  if (!large) {
    out.granted &= ~bit(ticket);  // a receiver that expects another size granted it: it will see the entry
    write_entry(to, lane, ticket, envelope, payload, payload.size(), static_cast<std::uint32_t>(EntryKind::message), false);
    if (to.broken.empty()) out.copied |= bit(ticket);
    return ticket;
  }
  out.entry_bytes[ticket % kSlots] = 0;  // it has none
  out.large[ticket % kSlots] = {.envelope = envelope, .payload = payload};
  out.waiting |= bit(ticket);
  if ((out.granted & bit(ticket)) != 0) {
    out.granted &= ~bit(ticket);
    check_grant(to, static_cast<int>(lane.stream), ticket);
  }
  return ticket;
}

/// Handles a grant: compares what the receiver expects with the message to be sent, and starts to write it.
void VerbsTransport::check_grant(Peer& from, int stream, Ticket ticket) {
  VerbsSend& out = from.out[static_cast<std::size_t>(stream)];
  Large& large = out.large[ticket % kSlots];
  GrantHeader grant;
  std::memcpy(&grant, from.ring(stream)->arriving(grant_offset(ticket)), sizeof grant);
  const Envelope wanted{grant.signature, grant.sequence, grant.tag, large.envelope.purpose};
  if (!wanted.matches(large.envelope) || grant.bytes != large.payload.size()) {
    // The receiver's error must name both sides, so it gets this end's envelope instead of the payload.
    out.waiting &= ~bit(ticket);
    out.refusing |= bit(ticket);
    write_refusals(from, stream);
    return;
  }
  if (const std::string trouble = trouble_of(grant); !trouble.empty()) {
    break_lanes(from, trouble);
    return;
  }
  large.may_use = usable_ways(from, large, grant.adapters);
  out.waiting &= ~bit(ticket);
  out.writing |= bit(ticket);
  write_large(from);
}

/// Returns the ways (bit w: way w) by which a payload may leave: this end's memory is registered with their adapters, and so is
/// the other end's with its `adapters`.
std::uint32_t VerbsTransport::usable_ways(const Peer& to, const Large& large, std::uint32_t adapters) const {
  std::uint32_t ways = 1U << to.main;
  for (std::size_t way = 0; way < to.ways(); ++way) {
    const std::size_t adapter = to.adapter_of(way);
    if (to.carries(way) && (adapters >> adapter & 1) != 0 && parts_->adapters[adapter]->slabs->covers(large.payload))
      ways |= 1U << way;
  }
  return ways;
}

/// Writes the envelopes of messages that differ from their grants, as far as the send queue has room.
void VerbsTransport::write_refusals(Peer& to, int stream) {
  VerbsSend& out = to.out[static_cast<std::size_t>(stream)];
  for (Ticket ticket = out.taken + 1; ticket <= out.last && out.refusing != 0; ++ticket) {
    if ((out.refusing & bit(ticket)) == 0) continue;
    if (!to.ready || to.pair->room() == 0) return;
    const Large& large = out.large[ticket % kSlots];
    out.refusing &= ~bit(ticket);
    write_entry(to, {to.number, static_cast<Stream>(stream)}, ticket, large.envelope, {}, large.payload.size(),
                static_cast<std::uint32_t>(EntryKind::refused), true);
    out.request[ticket % kSlots] = 0;  // such a message is never done
  }
}

/// Writes granted payloads in chunks, as far as the send queue has room and Chunks allow. Streams take turns, so that a long
/// message holds up those of other streams by no more than the chunks that are under way.
void VerbsTransport::write_large(Peer& to) {
  for (int idle = 0; idle < kQueues && to.ready && to.broken.empty();) {
    const int stream = std::exchange(to.turn, (to.turn + 1) % kQueues);
    idle = write_chunk(to, stream) ? 0 : idle + 1;
  }
}

/// Returns the way by which the next chunk of a payload shall leave: of those that have room, the one that is idle first; nothing
/// if none has room.
std::optional<std::size_t> VerbsTransport::next_way(Peer& to, const Large& large) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < to.ways(); ++i) {
    const std::size_t way = (to.way_turn + i) % to.ways();
    if ((large.may_use >> way & 1) == 0 || (large.parts != 0 && way != to.main)) continue;
    Chunks& chunks = to.chunks_of(way);
    if (to.way(way).room() <= kReserve / 2 || !chunks.have_room(to.way(way))) continue;
    if (!best || chunks.load_with(kChunkBytes) < to.chunks_of(*best).load_with(kChunkBytes)) best = way;
  }
  if (best) to.way_turn = (*best + 1) % to.ways();
  return best;
}

/// Writes the next chunk of the oldest granted payload of a stream, which stays within one slab at both ends. Returns false if
/// there is none, or no room for it. Behind a payload of several chunks immediates of their own tell that all have arrived:
/// adaptive routing may spread writes without one over several paths.
bool VerbsTransport::write_chunk(Peer& to, int stream) {
  VerbsSend& out = to.out[static_cast<std::size_t>(stream)];
  Ticket ticket = out.taken + 1;
  while (ticket <= out.last && (out.writing & bit(ticket)) == 0) ++ticket;
  if (ticket > out.last) return false;
  Large& large = out.large[ticket % kSlots];
  const std::optional<std::size_t> way = next_way(to, large);
  if (!way) return false;
  if (large.is_written()) {  // only the news of it was lost, or found no room
    if (!tell_parts(to, stream, ticket)) return false;
    out.written |= bit(ticket);
    out.writing &= ~bit(ticket);
    return true;
  }
  const std::size_t adapter = to.adapter_of(*way);
  const Slabs& slabs = *parts_->adapters[adapter]->slabs;
  const std::byte* place = to.ring(stream)->arriving(grant_offset(ticket));
  GrantHeader grant;
  std::memcpy(&grant, place, sizeof grant);
  const std::size_t offset = large.again.empty() ? large.written : large.again.back().offset;
  const std::span<const std::byte> rest =
      large.payload.subspan(offset, large.again.empty() ? std::dynamic_extent : large.again.back().bytes);
  if (adapter != 0 && !slabs.covers(rest)) {  // it is the only one left
    break_lanes(to, fmt::format("{} couldn't register the memory to be sent", parts_->adapters[adapter]->port.text()), *way);
    return true;
  }
  const Slabs::Piece piece = slabs.piece(rest);
  const std::optional<Granted> granted = granted_at(grant, offset, static_cast<int>(adapter));
  if (!granted) {
    break_lanes(to, "a grant changed while it was used, or has no key for the adapter that is left");
    return true;
  }
  std::uint32_t key = 0;
  std::memcpy(&key, place + sizeof grant + granted->key * sizeof key, sizeof key);
  const std::size_t bytes = std::min({rest.size(), piece.bytes, granted->bytes, chunk_bytes(large.payload.size(), large.may_use),
                                      std::size_t{parts_->adapters[adapter]->port.port.max_bytes}});
  const bool only = bytes == large.payload.size() && large.parts == 0;
  const Immediate arrival{News::data, stream, PartNews{static_cast<std::uint32_t>(ticket), 0, 1}.encode()};
  // Every write is signalled: nothing else shows that a message which takes longer than the deadline makes progress.
  const std::uint64_t request = to.way(*way).write({rest.data(), bytes, piece.local_key}, {grant.address + offset, key},
                                                   only ? std::optional(arrival) : std::nullopt, true);
  if (request == 0) {
    lose(to, *way, to.way(*way).post_error());
    return true;
  }
  to.chunks_of(*way).add(request, bytes);
  large.last[*way] = request;
  if (to.ways() > 1) large.chunks.push_back({offset, bytes, *way, request});
  if (large.again.empty()) {
    large.written += bytes;
  } else {
    large.again.back().offset += bytes;
    large.again.back().bytes -= bytes;
    if (large.again.back().bytes == 0) large.again.pop_back();
  }
  if (only) {
    large.parts = 1;
    large.parts_of[*way] = 1;
  }
  if (large.is_written() && (only || tell_parts(to, stream, ticket))) {
    out.written |= bit(ticket);
    out.writing &= ~bit(ticket);
  }
  return true;
}

/// Tells by each way that has carried chunks of a payload, behind them, that they have arrived. What was told and lost is told
/// again. Returns false if a way fails or has no room yet; what is left stands in Large::parts_to_tell then.
bool VerbsTransport::tell_parts(Peer& to, int stream, Ticket ticket) {
  Large& large = to.out[static_cast<std::size_t>(stream)].large[ticket % kSlots];
  if (large.parts == 0) {
    for (std::size_t way = 0; way < to.ways(); ++way) {
      if (large.last[way] != 0) large.parts_of[way] = static_cast<std::uint8_t>(1U << large.parts++);
    }
    large.parts_to_tell = (1U << large.parts) - 1;
  }
  for (std::size_t way = 0; way < to.ways(); ++way) {
    for (int part = 0; part < large.parts; ++part) {
      if (((large.parts_of[way] & large.parts_to_tell) >> part & 1) == 0) continue;
      if (to.way(way).room() == 0) return false;
      const PartNews news{static_cast<std::uint32_t>(ticket), part, large.parts};
      const std::uint64_t request = to.nudge(way, Immediate{News::data, stream, news.encode()}, true);
      if (request == 0) {
        lose(to, way, to.way(way).post_error());
        return false;
      }
      large.last[way] = request;
      large.parts_to_tell &= ~(1U << part);
    }
  }
  return true;
}

Outcome VerbsTransport::test_send(LaneId lane, Ticket ticket) {
  const Peer& to = peer(lane.peer);
  const VerbsSend& out = outgoing(lane);
  assert(ticket != kNotNow && ticket <= out.last);
  // What the peer has taken is done even if its NIC's acknowledgement was lost and the peer is gone by now.
  if (ticket <= out.taken || out.last - ticket >= kSlots || (out.copied & bit(ticket)) != 0) return Outcome::done;
  const Large& large = out.large[ticket % kSlots];
  bool is_written = (out.written & bit(ticket)) != 0;
  for (std::size_t way = 0; is_written && way < to.ways(); ++way)
    is_written = large.last[way] == 0 || to.way(way).is_completed(large.last[way]);
  return is_written ? Outcome::done : unless_broken(to);
}

/// Returns true once everything that was sent lies in the peer's memory, and the peer knows of everything that was taken. If the
/// last work request isn't signalled, posts an empty one that is.
bool VerbsTransport::finished_sending(Peer& to) {
  if (to.is_moving()) return false;
  for (int stream = 0; stream < kQueues; ++stream) {
    const VerbsSend& out = to.out[static_cast<std::size_t>(stream)];
    if ((out.waiting | out.writing | out.refusing | out.held) != 0) return false;
    if (to.is_open(stream) && to.in[static_cast<std::size_t>(stream)].to_grant != 0) return false;
  }
  for (int stream = 0; stream < kQueues; ++stream) {
    const VerbsReceive& in = to.in[static_cast<std::size_t>(stream)];
    if (in.told != in.prefix) write_credit(to, stream);
  }
  if (to.growth.needed && (to.lost & 1) == 0 && !to.first.is_completed(to.first.posted())) return false;
  for (std::size_t way = 1; way < to.ways(); ++way) {
    if (way != to.main && to.carries(way) && !to.way(way).is_completed(to.way(way).posted())) return false;
  }
  if (to.pair == nullptr || to.pair->is_completed(to.pair->posted())) return true;
  if (to.pair->last_signalled() != to.pair->posted() && to.pair->room() > 0) {
    if (to.nudge(to.main, std::nullopt, true) == 0) lose(to, to.main, to.pair->post_error());
  }
  return false;
}

}  // namespace tsprun::detail::verbs
