// Goes on without a way that has failed, as long as another one carries (NCCL's failover of ports): the job keeps its bits, as
// each end learns what has arrived at the other, and posts the rest again.
//
//   a way fails:  this end destroys its queue pair, so what is still under way by it can't arrive any more ── Reports of all
//                 queues, and "lost", by each way that is left ── the peer does the same, of what it has
//   both closed:  what this end had posted by the lost way, and the peer doesn't have, is posted again by those that are left
//
// Between failure and the peer's "lost" nothing else is posted, so both ends speak of the same. A payload's chunks are written
// again to the same places: the receiver looks at it only when all parts are told. What left by other ways arrives by itself. A
// way that was lost stays lost: its port may come and go.
#include "transport/log.h"
#include "transport/verbs/judgement.h"
#include "transport/verbs/parts.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail::verbs {

/// Gives up a way of a peer, which may be one that isn't proved at both ends yet. Returns false, having done nothing, if no other
/// one carries.
bool VerbsTransport::lose_way(Peer& at, std::size_t way, const std::string& why) {
  if (!at.broken.empty()) return false;
  if (((at.lost | at.to_lose) >> way & 1) != 0) return true;  // requests that fail with it
  if ((at.carrying() & ~(1U << way)) == 0) return false;
  at.to_lose |= 1U << way;
  at.ready = false;
  Adapter& by = *parts_->adapters[at.adapter_of(way)];
  by.ask_port();
  const std::string text =
      fmt::format("{} to {}: {}{}{}", by.port.port.text(), at.address_of(way).port, why,
                  by.port_trouble.empty() || by.port_trouble == why ? "" : "; ", by.port_trouble == why ? "" : by.port_trouble);
  at.lost_why += (at.lost_why.empty() ? "" : "; ") + text;
  const std::size_t left = static_cast<std::size_t>(std::countr_zero(at.carrying()));
  // Where a port is down one line stands for all peers.
  const bool is_told = !by.port_trouble.empty() && std::exchange(by.has_told_loss, true);
  by.has_lost = by.has_lost || by.port_trouble.empty();
  logger().log(is_told ? spdlog::level::debug : spdlog::level::warn, "a way by RDMA is lost, {}; the job goes on by {} to {}",
               text, parts_->adapters[at.adapter_of(left)]->port.port.text(), at.address_of(left).port);
  if (!at.touched) parts_->touched.push_back(&at);
  at.touched = true;
  return true;
}

/// Gives up a way of a peer, and the lanes if it was the last one.
void VerbsTransport::lose(Peer& at, std::size_t way, const std::string& why) {
  if (!lose_way(at, way, why)) break_lanes(at, why, way);
}

/// Moves peers to other adapters, where there are some: the port of this one is down. Where all are, the retries, which last
/// longer than a short outage, tell which of them comes back. Names the port, too, if requests failed before it said that it is
/// down.
void VerbsTransport::leave_adapter(std::size_t adapter, const std::string& why) {
  std::vector<bool> works;
  for (const std::unique_ptr<Adapter>& each : parts_->adapters) {
    each->ask_port();
    works.push_back(each->port_trouble.empty());
  }
  for (const std::unique_ptr<Peer>& each : parts_->peers) {
    bool has_other = false;
    for (std::size_t way = 0; each && way < each->ways(); ++way)
      has_other = has_other || (each->carries(way) && works[each->adapter_of(way)]);
    for (std::size_t way = 0; has_other && way < each->ways(); ++way) {
      if (each->adapter_of(way) == adapter && each->may_carry(way)) lose_way(*each, way, why);
    }
  }
  Adapter& left = *parts_->adapters[adapter];
  if (left.has_lost && !std::exchange(left.has_told_loss, true))
    logger().warn("{}; a way by RDMA by this port was lost before", why);
}

/// Gives up what goes by an adapter, or by one of its queue pairs.
void VerbsTransport::lose_adapter(std::size_t adapter, const std::string& why, std::optional<std::uint32_t> queue_pair) {
  for (const std::unique_ptr<Peer>& each : parts_->peers) {
    if (!each) continue;
    for (std::uint32_t which = 0; which < Peer::kOthers + each->others.size(); ++which) {
      const QueuePair* const pair = each->queue_pair(which);
      const std::size_t way = Peer::way_of(which);
      if (pair == nullptr || each->adapter_of(way) != adapter || (queue_pair && *queue_pair != pair->number())) continue;
      if (!each->may_carry(way)) {
        if (each->others[way - 1].left_out.empty()) leave_out(*each, way, why);
        continue;
      }
      if (lose_way(*each, way, why)) continue;
      if (each->broken.empty()) each->flushed = queue_pair.has_value();  // the failed completion may tell more
      break_lanes(*each, why, way);
    }
  }
}

/// Closes ways that have failed, tells the peer, and goes on once that has done the same.
void VerbsTransport::move(Peer& at) {
  if (!at.is_moving() || !at.broken.empty()) return;
  const std::uint32_t closing = at.to_lose;
  for (std::size_t way = 0; way < at.ways(); ++way) {
    if ((closing >> way & 1) == 0) continue;
    bool is_closed = true;
    if (way == 0) is_closed = at.first.close() && (!at.whole || at.whole->close());
    else if (at.others[way - 1].pair) is_closed = at.others[way - 1].pair->close();
    if (!is_closed) return break_lanes(at, "a queue pair that has failed can't be destroyed", way);
  }
  at.lost |= closing;
  at.to_lose = 0;
  if (at.here.lost != at.lost) report(at);
  for (std::size_t way = 0; way < at.ways() && at.broken.empty(); ++way) {
    if (at.carries(way) && (at.told_by >> way & 1) == 0) tell_lost(at, way);
  }
  const bool is_told = at.to_lose == 0 && (at.carrying() & ~at.told_by) == 0;
  if (is_told && at.broken.empty() && at.lost == at.there.lost) settle(at);
}

/// Prepares what the peer shall be told: which ways are closed, and what has arrived.
void VerbsTransport::report(Peer& at) {
  at.here = {static_cast<std::uint8_t>(at.lost), static_cast<std::uint8_t>(at.carrying()), 0};
  at.told_by = 0;
  for (int stream = 0; stream < kQueues; ++stream) {
    if (!at.is_there(stream)) continue;
    VerbsReceive& in = at.in[static_cast<std::size_t>(stream)];
    const VerbsSend& out = at.out[static_cast<std::size_t>(stream)];
    Report mine{.prefix = in.prefix,
                .entries = in.entries,
                .done = in.finished | in.data,
                .grants = out.grants_seen,
                .parts = {},
                .unused = {}};
    for (std::size_t slot = 0; slot < kSlots; ++slot) mine.parts[slot] = in.parts[slot].seen;
    in.told = in.prefix;
    std::memcpy(at.ring(stream)->leaving(report_offset(at.lost)), &mine, sizeof mine);
    at.here.there = static_cast<std::uint8_t>(at.here.there | 1U << stream);
  }
}

/// Tells the peer by this way, if there is room. It is told by each that carries, as it may have closed any of them; and if it is
/// gone they fail together, not one after the other, each after its retries.
void VerbsTransport::tell_lost(Peer& at, std::size_t way) {
  QueuePair& by = at.way(way);
  if (by.room() <= kQueues) return;
  const std::size_t adapter = at.adapter_of(way);
  const std::size_t offset = report_offset(at.here.lost);
  for (int stream = 0; stream < kQueues; ++stream) {
    if ((at.here.there >> stream & 1) == 0) continue;
    const Ring& ring = *at.ring(stream);
    if (by.write({ring.leaving(offset), sizeof(Report), ring.region.local_key(adapter)},
                 {ring.there.address + offset, ring.there.keys[adapter]}, std::nullopt, false) == 0)
      return lose(at, way, by.post_error());
  }
  if (at.nudge(way, Immediate{News::join, 0, at.here.encode()}, true) == 0) return lose(at, way, by.post_error());
  at.told_by |= 1U << way;
}

/// Notes which ways the peer has closed, and what it has.
void VerbsTransport::take_lost(Peer& from, std::uint32_t low) {
  const LostNews news = LostNews::decode(low);
  if ((news.lost & ~from.there.lost) == 0 && news.lost != 0) return;  // the same word by another way, or an older one
  if (const std::string_view trouble = trouble_of(news, from.ways(), from.there.lost); !trouble.empty())
    return break_lanes(from, std::string(trouble));
  from.there = news;
  for (int stream = 0; stream < kQueues; ++stream) {
    const bool has_report = (news.there >> stream & 1) != 0 && from.ring(stream) != nullptr;
    Report& report = from.reports[static_cast<std::size_t>(stream)];
    report = {};
    if (has_report) std::memcpy(&report, from.ring(stream)->arriving(report_offset(news.lost)), sizeof report);
  }
  for (std::size_t way = 0; way < from.ways(); ++way) {
    // What the peer has heard of a way, this end may have been told by one that is lost.
    if (way != 0 && ((news.carries | news.lost) >> way & 1) != 0 && from.others[way - 1].told_proved)
      from.others[way - 1].there.proved = true;
  }
  for (std::size_t way = 0; way < from.ways() && from.broken.empty(); ++way) {
    if ((news.lost >> way & 1) != 0) lose(from, way, "the other end has lost it");
  }
}

/// Both ends have closed the same ways: posts again what went by them and hasn't arrived.
void VerbsTransport::settle(Peer& at) {
  const std::uint32_t lost = at.lost & ~at.settled;
  at.settled = at.lost;
  for (std::size_t way = 1; way < at.ways(); ++way) {
    // What was told of ways that don't carry yet may be lost, too. Of one that either end has reported as carrying both have told
    // that it is proved, and nothing joins while a way is lost: the last words of both ends tell both ends the same.
    const bool stays = ((at.here.carries | at.there.carries) >> way & 1) != 0;
    Other& other = at.others[way - 1];
    if (stays || (at.lost >> way & 1) != 0) continue;
    other.there.left = true;
    if (other.left_out.empty()) leave_out(at, way, "it wasn't proved when another way was lost");
  }
  if (at.carrying() == 0) return break_lanes(at, "no way is left");
  if ((at.lost >> at.main & 1) != 0) {
    at.main = static_cast<std::size_t>(std::countr_zero(at.carrying()));
    at.pair = &at.way(at.main);
    for (VerbsSend& out : at.out) out.request.fill(0);
    for (VerbsReceive& in : at.in) in.grant_request.fill(0);
  }
  at.ready = true;
  for (int stream = 0; stream < kQueues && at.broken.empty(); ++stream) send_again(at, stream, lost);
}

/// Marks what was posted on a queue by lost ways, and isn't there, to be posted again; the caller pumps.
void VerbsTransport::send_again(Peer& at, int stream, std::uint32_t lost) {
  const auto number = static_cast<std::size_t>(stream);
  VerbsSend& out = at.out[number];
  VerbsReceive& in = at.in[number];
  const Report& there = at.reports[number];
  const auto by_lost = [&](std::size_t way) { return (lost >> way & 1) != 0; };
  take_credit(at, stream, there.prefix);
  Ring* const ring = at.ring(stream);
  if (ring != nullptr && ring->told && by_lost(ring->told_way) && (at.there.there >> stream & 1) == 0) ring->told = false;
  for (Ticket ticket = out.taken + 1; ticket <= out.last && at.broken.empty(); ++ticket) {
    const std::size_t slot = ticket % kSlots;
    const bool is_held = (out.held & bit(ticket)) != 0;
    if (out.entry_bytes[slot] != 0 && !is_held && by_lost(out.entry_way[slot]) &&
        ((there.entries | there.done) & bit(ticket)) == 0)
      out.held |= bit(ticket);
    if (((out.writing | out.written) & bit(ticket)) != 0) send_payload_again(at, stream, ticket, lost);
  }
  for (Ticket ticket = in.prefix + 1; ticket <= in.last; ++ticket) {
    const std::size_t slot = ticket % kSlots;
    if ((in.granted & bit(ticket)) == 0 || !by_lost(in.grant_way[slot]) || (there.grants & bit(ticket)) != 0) continue;
    in.granted &= ~bit(ticket);
    in.to_grant |= bit(ticket);
  }
}

/// Marks the chunks of a payload that left by lost ways to be written again, unless they are known to have arrived, and the news
/// of them to be told again.
void VerbsTransport::send_payload_again(Peer& at, int stream, Ticket ticket, std::uint32_t lost) {
  const auto number = static_cast<std::size_t>(stream);
  VerbsSend& out = at.out[number];
  const Report& there = at.reports[number];
  Large& large = out.large[ticket % kSlots];
  large.may_use = (large.may_use & at.carrying()) | 1U << at.main;
  for (std::size_t way = 0; way < at.ways(); ++way) {
    if ((lost >> way & 1) == 0 || (large.last[way] == 0 && large.parts_of[way] == 0)) continue;
    large.last[way] = 0;
    const std::uint32_t parts = large.parts_of[way];
    large.parts_of[way] = 0;
    const bool has_come = (there.done & bit(ticket)) != 0;
    const std::uint32_t missing = parts & ~std::uint32_t{there.parts[ticket % kSlots]};
    if (has_come || (large.parts != 0 && missing == 0)) continue;
    large.parts_to_tell |= missing;
    large.parts_of[at.main] = static_cast<std::uint8_t>(large.parts_of[at.main] | missing);
    // What was acknowledged is in its place, and its source may be in other use by now.
    std::erase_if(large.chunks, [&](const Large::Chunk& chunk) {
      if (chunk.way == way && !at.way(way).is_completed(chunk.request)) large.again.push_back(chunk);
      return chunk.way == way;
    });
    out.written &= ~bit(ticket);
    out.writing |= bit(ticket);
  }
}

}  // namespace tsprun::detail::verbs
