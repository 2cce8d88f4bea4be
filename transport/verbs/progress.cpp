// Reads what VerbsTransport learns from its NIC: completions with the news that they bring, events of devices and ports, the
// silence of a peer, and the end of a connection. Messages are in sending.cpp and receiving.cpp.
#include "transport/log.h"
#include "transport/verbs/judgement.h"
#include "transport/verbs/parts.h"
#include "transport/verbs/verbs_transport.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

namespace tsprun::detail::verbs {

namespace {

/// Rounds of progress between looks for asynchronous events, which cost a system call; completions don't.
constexpr std::uint32_t kRoundsBetweenEvents = 4096;
/// Finished messages after which the receiver tells the sender, if no entry or grant has told it.
constexpr std::uint64_t kTellAfter = 4;
/// Part of the deadline (an eighth) for which a peer that owes something may be silent before this rank tests whether it is
/// alive.
constexpr std::uint64_t kSilence = 8;
/// Time for which a failed request isn't reported yet: a port that goes down first fails requests, and its event comes a moment
/// later.
constexpr std::uint64_t kPortNewsNs = 200'000'000;

}  // namespace

bool VerbsTransport::progress() {
  Parts& parts = *parts_;
  if (parts.adapters.empty()) return false;
  std::array<ibv_wc, 32> completions;
  bool moved = false;
  for (std::size_t adapter = 0; adapter < parts.adapters.size(); ++adapter) {
    Events& events = *parts.adapters[adapter]->events;
    for (std::size_t queue = 0; queue < events.queues(); ++queue) {
      while (true) {
        const int count = events.poll(queue, completions);
        if (count < 0) lose_adapter(adapter, "the completion queue can't be read any more");
        for (int i = 0; i < count; ++i) moved = completion(&completions[static_cast<std::size_t>(i)]) || moved;
        if (count < static_cast<int>(completions.size())) break;
      }
    }
  }
  if (++parts.rounds_since_events >= kRoundsBetweenEvents) look_at_events();
  // What others have to post waits for completions of their own.
  for (std::size_t i = 0; i < parts.touched.size(); ++i) {  // one that loses a way meanwhile is added
    parts.touched[i]->touched = false;
    pump(*parts.touched[i]);
  }
  parts.touched.clear();
  link_again();
  return moved;
}

/// Posts what had to wait: news of a whole queue pair, the places of rings, entries, grants, credits, refusals and granted
/// payloads.
void VerbsTransport::pump(Peer& to) {
  move(to);
  advance(to);
  advance_others(to);
  tell_opened(to);
  for (int stream = 0; stream < kQueues && to.broken.empty() && to.ready; ++stream) {
    if (to.out[static_cast<std::size_t>(stream)].held != 0) post_held(to, stream);
    const VerbsReceive& in = to.in[static_cast<std::size_t>(stream)];
    if (in.to_grant != 0) write_grants(to, stream);
    if (in.prefix - in.told >= kTellAfter) write_credit(to, stream);
    const VerbsSend& out = to.out[static_cast<std::size_t>(stream)];
    if (out.refusing != 0) write_refusals(to, stream);
  }
  if (to.ready) write_large(to);
}

/// Describes a failed request with what else is known of it: how often it was tried, and which part of the probe it was.
std::string VerbsTransport::why_failed(const Peer& at, std::uint32_t which, const void* completion) const {
  const auto& failed = *static_cast<const ibv_wc*>(completion);
  std::string why = describe(failed);
  if (failed.status == IBV_WC_RETRY_EXC_ERR) why += fmt::format(", {}", parts_->limits.text());
  const std::uint64_t request = QueuePair::number_of(failed.wr_id);
  const std::size_t way = Peer::way_of(which);
  const bool is_probe = which == Peer::kFirst ? request == at.probe : way != 0 && request == at.others[way - 1].probe;
  if (request > 1 && is_probe) {
    const std::size_t packet = packet_bytes(parts_->adapters[at.adapter_of(way)]->port, at.address_of(way));
    why += fmt::format(
        "; a write of {} bytes arrived, one of {} didn't, which fills a packet of the path MTU: something on the way "
        "takes no packets of this size; --rdma mtu={} makes them smaller",
        kProbeBytes, packet, std::max<std::size_t>(packet / 2, 256));
  }
  return why;
}

/// Handles a completion. Returns true if it is a sign of progress; false if it only completes a test of ask_silent_peers(),
/// which succeeds even if nothing moves.
bool VerbsTransport::completion(const void* found) {
  const auto& done = *static_cast<const ibv_wc*>(found);
  const std::uint32_t tag = QueuePair::tag_of(done.wr_id);
  const std::uint32_t number = tag / Peer::kTagsOfPeer;
  const std::uint32_t which = tag % Peer::kTagsOfPeer;
  if (number >= parts_->peers.size() || !parts_->peers[number]) return false;
  Peer& at = *parts_->peers[number];
  QueuePair* const found_pair = at.queue_pair(which);
  if (found_pair == nullptr) return false;
  QueuePair& by = *found_pair;
  if (!at.touched) parts_->touched.push_back(&at);
  at.touched = true;
  if (done.status != IBV_WC_SUCCESS) {
    failed(at, which, &done);
    return !at.broken.empty() || !at.is_moving();  // the loss of a way is no sign that a peer lives
  }
  const std::uint64_t request = QueuePair::number_of(done.wr_id);
  if (request != 0) {
    by.completed(request);
    return done.wr_id != at.question;
  }
  ++at.arrivals;
  if ((done.wc_flags & IBV_WC_WITH_IMM) == 0) {
    break_lanes(at, "a message without an immediate arrived");
  } else if (&by == &at.first && at.growth.needed) {
    take_growth(at, ntohl(done.imm_data));
  } else {
    if (!by.received()) break_lanes(at, by.post_error());  // or the peer would soon find no receive posted
    const Immediate news = Immediate::decode(ntohl(done.imm_data));
    const std::string_view trouble = which < Peer::kOthers || (at.lost & 1) != 0 ? std::string_view() : trouble_by_other(news);
    if (trouble.empty()) arrived(at, ntohl(done.imm_data));
    else break_lanes(at, std::string(trouble));
  }
  return true;
}

/// Handles a failed request of one of a peer's queue pairs.
void VerbsTransport::failed(Peer& at, std::uint32_t which, const void* completion) {
  // In a failed completion only wr_id, status, vendor_err and qp_num are valid.
  look_at_events();
  const std::size_t way = Peer::way_of(which);
  if (!at.may_carry(way)) {
    if (at.others[way - 1].left_out.empty()) leave_out(at, way, why_failed(at, which, completion));
    return;
  }
  if (at.broken.empty() && lose_way(at, way, why_failed(at, which, completion))) return;
  const bool flush = static_cast<const ibv_wc*>(completion)->status == IBV_WC_WR_FLUSH_ERR;
  if (at.broken.empty() || (at.flushed && !flush)) {
    if (at.broken.empty()) at.told_ns = posix::now_ns() + kPortNewsNs;
    at.broken.clear();
    break_lanes(at, why_failed(at, which, completion), way);
    at.flushed = flush;
  }
}

void VerbsTransport::arrived(Peer& from, std::uint32_t word) {
  const Immediate immediate = Immediate::decode(word);
  const bool is_open = immediate.stream < kQueues && from.is_open(immediate.stream);
  if (const std::string_view trouble = trouble_of(immediate, is_open); !trouble.empty())
    return break_lanes(from, std::string(trouble));
  switch (immediate.news) {
    case News::credit: {
      const VerbsSend& out = from.out[static_cast<std::size_t>(immediate.stream)];
      return take_credit(from, immediate.stream, widen(immediate.low, out.taken));
    }
    case News::grant: return take_grant(from, immediate.stream, immediate.low);
    case News::entry: return take_entry(from, immediate.stream, immediate.low);
    case News::data: return take_part(from, immediate.stream, immediate.low);
    case News::opened: return take_opened(from, immediate.stream);
    case News::join:
      if (immediate.stream == 0) return take_lost(from, immediate.low);
      return take_join(from, static_cast<std::size_t>(immediate.stream), immediate.low);
    case News::whole:
    case News::ready: return;  // trouble_of() names them
  }
}

void VerbsTransport::take_grant(Peer& from, int stream, std::uint32_t low) {
  VerbsSend& out = from.out[static_cast<std::size_t>(stream)];
  // A grant may come before its message is sent: the receiver may post up to kSlots receives beyond what it has finished.
  const Ticket named = widen(low, out.taken);
  GrantHeader grant;
  std::memcpy(&grant, from.ring(stream)->arriving(grant_offset(named)), sizeof grant);
  take_credit(from, stream, grant.taken);
  const Ticket ticket = awaited(low, out.taken).value_or(kNotNow);
  if (ticket == kNotNow || grant.ticket != ticket) {
    break_lanes(from, fmt::format("a grant for message {} where at most {} are awaited", grant.ticket, out.taken + kSlots));
    return;
  }
  out.grants_seen |= bit(ticket);
  if (ticket > out.last) {
    out.granted |= bit(ticket);
  } else if ((out.waiting & bit(ticket)) != 0) {
    check_grant(from, stream, ticket);
  }
}

void VerbsTransport::take_entry(Peer& from, int stream, std::uint32_t low) {
  VerbsReceive& in = from.in[static_cast<std::size_t>(stream)];
  const Ticket ticket = awaited(low, in.prefix).value_or(kNotNow);
  if (ticket == kNotNow || ((in.entries | in.data) & bit(ticket)) != 0)
    return break_lanes(from,
                       fmt::format("message {} arrived where those after {} are awaited", widen(low, in.prefix), in.prefix));
  in.entries |= bit(ticket);
  EntryHeader header;
  std::memcpy(&header, from.ring(stream)->arriving(entry_offset(ticket)), sizeof header);
  take_credit(from, stream, header.taken);
}

/// Notes that a part of a payload has arrived.
void VerbsTransport::take_part(Peer& from, int stream, std::uint32_t low) {
  VerbsReceive& in = from.in[static_cast<std::size_t>(stream)];
  const PartNews news = PartNews::decode(low);
  const Ticket ticket = awaited(news.ticket, in.prefix, PartNews::kTicketMask).value_or(kNotNow);
  if (ticket == kNotNow || ((in.entries | in.data) & bit(ticket)) != 0 || (in.granted & bit(ticket)) == 0) {
    return break_lanes(from, fmt::format("the payload of message {} arrived where those after {} are awaited",
                                         widen(news.ticket, in.prefix, PartNews::kTicketMask), in.prefix));
  }
  Arrived& parts = in.parts[ticket % kSlots];
  if (const std::string_view trouble = trouble_of(news, parts); !trouble.empty()) return break_lanes(from, std::string(trouble));
  parts.all = static_cast<std::uint8_t>(news.parts);
  parts.seen = static_cast<std::uint8_t>(parts.seen | 1U << news.part);
  if (parts.is_whole()) in.data |= bit(ticket);
}

void VerbsTransport::take_credit(Peer& from, int stream, std::uint64_t taken) {
  VerbsSend& out = from.out[static_cast<std::size_t>(stream)];
  if (taken <= out.taken) return;
  Ticket sent = out.held == 0 ? out.last : out.taken;
  while (sent < out.last && (out.held & bit(sent + 1)) == 0) ++sent;
  if (taken > sent) return break_lanes(from, fmt::format("the peer has taken {} messages of {}", taken, sent));
  for (Ticket ticket = out.taken + 1; ticket <= taken; ++ticket) {
    if (((out.waiting | out.writing | out.refusing) & bit(ticket)) != 0)
      return break_lanes(from, fmt::format("the peer has taken message {} before it was written", ticket));
  }
  for (Ticket ticket = out.taken + 1; ticket <= taken; ++ticket) out.grants_seen &= ~bit(ticket);
  out.taken = taken;
}

/// Notes why the lanes are broken. The adapter of a peer that still believes in them shall notice as soon as it sends something.
void VerbsTransport::break_lanes(Peer& at, const std::string& cause, std::size_t way) {
  if (!at.broken.empty()) return;
  at.broken = cause;
  at.broken_way = way;
  // Before its own probe has arrived a pair may only be left to another transport, which the peer's probe mustn't wait for.
  if (at.probe == 0 || !at.first.is_completed(at.probe)) return;
  at.first.stop();
  if (at.whole) at.whole->stop();
  for (Other& each : at.others) {
    if (each.pair) each.pair->stop();
  }
}

/// Returns the outcome of a message that isn't done: pending, or disconnected once the connection is broken and its cause can
/// be told.
Outcome VerbsTransport::unless_broken(const Peer& at) {
  if (at.broken.empty()) return Outcome::pending;
  Adapter& by = *parts_->adapters[at.adapter_of(at.broken_way)];
  by.ask_port();
  return by.port_trouble.empty() && posix::now_ns() < at.told_ns ? Outcome::pending : Outcome::disconnected;
}

std::string VerbsTransport::why_broken(const Peer& at) const {
  const Adapter& by = *parts_->adapters[at.adapter_of(at.broken_way)];
  std::string why = fmt::format("{} to {}: {}", by.port.text(), at.address_of(at.broken_way).port, at.broken);
  for (const std::string& trouble : {by.port_trouble, by.address_trouble, at.lost_why}) {
    if (!trouble.empty()) why += "; " + trouble;
  }
  return why;
}

void VerbsTransport::look_at_events() {
  Parts& parts = *parts_;
  parts.rounds_since_events = 0;
  for (std::size_t adapter = 0; adapter < parts.adapters.size(); ++adapter) {
    DeviceEvent event;
    while (parts.adapters[adapter]->events->next(event)) {
      Adapter& by = *parts.adapters[adapter];
      by.note(event);
      if (event.port_changed && !by.port_trouble.empty()) leave_adapter(adapter, by.port_trouble);
      if (event.breaks == DeviceEvent::Extent::nothing) continue;
      const std::string why = fmt::format("{} on {}", event.text, by.port.text());
      lose_adapter(adapter, why, event.breaks == DeviceEvent::Extent::device ? std::nullopt : std::optional(event.queue_pair));
    }
  }
}

/// Tests peers that owe a message, a grant or credit and have been silent. A rank that only waits has nothing in flight, so the
/// NIC can't notice a dead peer; an empty write makes it notice.
void VerbsTransport::ask_silent_peers() {
  Parts& parts = *parts_;
  const std::uint64_t now = posix::now_ns();
  if (now < parts.next_question_ns) return;
  const std::uint64_t patience = parts.options.timeout_ns / kSilence;
  parts.next_question_ns = now + patience / 4;
  for (const std::unique_ptr<Peer>& each : parts.peers) {
    if (!each || !each->linked || !each->broken.empty()) continue;
    const std::uint64_t signs = each->arrivals + each->done();
    if (each->to_lose != 0 || (each->lost != 0 && each->carrying() == 0)) continue;
    const std::size_t way = each->lost == 0 ? 0 : static_cast<std::size_t>(std::countr_zero(each->carrying()));
    const std::uint32_t which = way != 0                                 ? Peer::kOthers + static_cast<std::uint32_t>(way) - 1
                                : each->was_ready && each->growth.needed ? Peer::kWholeOne
                                                                         : Peer::kFirst;
    QueuePair& by = *each->queue_pair(which);
    const bool awaited =
        each->is_moving() ||
        std::any_of(each->in.begin(), each->in.end(), [](const VerbsReceive& in) { return in.last > in.prefix; }) ||
        std::any_of(each->out.begin(), each->out.end(), [](const VerbsSend& out) { return out.last > out.taken; });
    if (signs != each->seen || each->quiet_since_ns == 0 || !awaited) {
      each->seen = signs;
      each->quiet_since_ns = now;
    } else if (now - each->quiet_since_ns >= patience && by.room() > 0 &&
               by.is_completed(by.last_signalled())) {  // requests that aren't signalled may be done long since
      each->quiet_since_ns = now;
      const Address& there = each->address_of(way);
      const std::uint64_t request = by.write({nullptr, 0, 0}, {there.door(), there.doors_key}, std::nullopt, true);
      if (request == 0) lose(*each, way, by.post_error());
      each->question = QueuePair::wr_id_of(Peer::tag(each->number, which), request);
    }
  }
}

std::uint64_t VerbsTransport::arm() {
  if (!parts_->adapters.empty()) {
    ask_silent_peers();
    for (const std::unique_ptr<Adapter>& each : parts_->adapters) each->events->arm();
    look_at_events();
  }
  std::uint64_t wake_ns = kNoDeadline;
  for (const Peer* each : parts_->linking) wake_ns = std::min(wake_ns, each->next_try_ns());
  return wake_ns;
}
void VerbsTransport::disarm() {
  for (const std::unique_ptr<Adapter>& each : parts_->adapters) each->events->disarm();
}
int VerbsTransport::descriptor() const {
  if (parts_->adapters.empty()) return -1;
  return parts_->wake ? parts_->wake.get() : parts_->first().events->descriptor();
}

bool VerbsTransport::close(int number) {
  Peer& to = peer(number);
  to.closing = true;
  if (!to.linked || (to.broken.empty() && finished_sending(to))) return true;
  if (to.broken.empty()) {
    if (to.is_moving()) ask_silent_peers();  // the other end may be gone, and nothing is under way to it
    return false;
  }
  int lost = 0;
  for (VerbsSend& out : to.out) lost += std::popcount(std::exchange(out.held, 0));
  if (lost != 0) logger().warn("{} small messages that were sent never left: {}", lost, why_broken(to));
  return true;
}

Found VerbsTransport::found(LaneId lane) const {
  Found found = incoming(lane).found;
  const Peer& from = peer(lane.peer);
  if (!from.broken.empty()) found.detail = why_broken(from);
  return found;
}

}  // namespace tsprun::detail::verbs
