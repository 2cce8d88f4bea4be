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
  if (!parts.events) return false;
  std::array<ibv_wc, 32> completions;
  bool moved = false;
  for (std::size_t queue = 0; queue < parts.events->queues(); ++queue) {
    while (true) {
      const int count = parts.events->poll(queue, completions);
      if (count < 0) {
        for (const std::unique_ptr<Peer>& each : parts.peers) {
          if (each) break_lanes(*each, "the completion queue can't be read any more");
        }
      }
      for (int i = 0; i < count; ++i) moved = completion(&completions[static_cast<std::size_t>(i)]) || moved;
      if (count < static_cast<int>(completions.size())) break;
    }
  }
  if (++parts.rounds_since_events >= kRoundsBetweenEvents) look_at_events();
  // What others have to post waits for completions of their own.
  for (Peer* each : parts.touched) {
    each->touched = false;
    pump(*each);
  }
  parts.touched.clear();
  link_again();
  return moved;
}

/// Posts what had to wait: news of a whole queue pair, the places of rings, entries, grants, credits, refusals and granted
/// payloads.
void VerbsTransport::pump(Peer& to) {
  advance(to);
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
std::string VerbsTransport::why_failed(const Peer& at, const void* completion) const {
  const auto& failed = *static_cast<const ibv_wc*>(completion);
  std::string why = describe(failed);
  if (failed.status == IBV_WC_RETRY_EXC_ERR) why += fmt::format(", {}", parts_->limits.text());
  const std::uint64_t request = QueuePair::number_of(failed.wr_id);
  if (request != 0 && request == at.probe && QueuePair::tag_of(failed.wr_id) == Peer::tag(at.number, false)) {
    const std::size_t packet = at.packet_bytes(parts_->port);
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
  const std::uint32_t number = tag >> 1;
  if (number >= parts_->peers.size() || !parts_->peers[number]) return false;
  Peer& at = *parts_->peers[number];
  const bool by_whole = tag == Peer::tag(at.number, true);
  if (by_whole && !at.whole) return false;
  QueuePair& by = by_whole ? *at.whole : at.first;
  if (!at.touched) parts_->touched.push_back(&at);
  at.touched = true;
  if (done.status != IBV_WC_SUCCESS) {
    // In a failed completion only wr_id, status, vendor_err and qp_num are valid.
    look_at_events();
    const bool flush = done.status == IBV_WC_WR_FLUSH_ERR;
    if (at.broken.empty() || (at.flushed && !flush)) {
      if (at.broken.empty()) at.told_ns = posix::now_ns() + kPortNewsNs;
      at.broken.clear();
      break_lanes(at, why_failed(at, &done));
      at.flushed = flush;
    }
    return true;
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
    arrived(at, ntohl(done.imm_data));
  }
  return true;
}

void VerbsTransport::arrived(Peer& from, std::uint32_t word) {
  const Immediate immediate = Immediate::decode(word);
  const bool is_open = immediate.stream < kQueues && from.is_open(immediate.stream);
  if (const std::string_view trouble = trouble_of(immediate, is_open); !trouble.empty())
    return break_lanes(from, std::string(trouble));
  const Ring* const ring = from.ring(immediate.stream);
  const auto stream = static_cast<std::size_t>(immediate.stream);
  VerbsReceive& in = from.in[stream];
  VerbsSend& out = from.out[stream];
  switch (immediate.news) {
    case News::credit: take_credit(from, immediate.stream, widen(immediate.low, out.taken)); return;
    case News::grant: {
      // A grant may come before its message is sent: the receiver may post up to kSlots receives beyond what it has finished.
      const Ticket named = widen(immediate.low, out.taken);
      GrantHeader grant;
      std::memcpy(&grant, ring->arriving(grant_offset(named)), sizeof grant);
      take_credit(from, immediate.stream, grant.taken);
      const Ticket ticket = awaited(immediate.low, out.taken).value_or(kNotNow);
      if (ticket == kNotNow || grant.ticket != ticket) {
        break_lanes(from, fmt::format("a grant for message {} where at most {} are awaited", grant.ticket, out.taken + kSlots));
        return;
      }
      if (ticket > out.last) {
        out.granted |= bit(ticket);
      } else if ((out.waiting & bit(ticket)) != 0) {
        check_grant(from, immediate.stream, ticket);
      }
      return;
    }
    case News::entry:
    case News::data: {
      const Ticket ticket = awaited(immediate.low, in.prefix).value_or(kNotNow);
      if (ticket == kNotNow || ((in.entries | in.data) & bit(ticket)) != 0 ||
          (immediate.news == News::data && (in.granted & bit(ticket)) == 0)) {
        break_lanes(
            from, fmt::format("message {} arrived where those after {} are awaited", widen(immediate.low, in.prefix), in.prefix));
        return;
      }
      (immediate.news == News::entry ? in.entries : in.data) |= bit(ticket);
      if (immediate.news == News::entry) {
        EntryHeader header;
        std::memcpy(&header, ring->arriving(entry_offset(ticket)), sizeof header);
        take_credit(from, immediate.stream, header.taken);
      }
      return;
    }
    case News::opened: take_opened(from, immediate.stream); return;
    case News::whole:
    case News::ready: return;  // trouble_of() names them
  }
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
  out.taken = taken;
}

/// Notes why the lanes are broken. The adapter of a peer that still believes in them shall notice as soon as it sends something.
void VerbsTransport::break_lanes(Peer& at, const std::string& cause) {
  if (!at.broken.empty()) return;
  at.broken = cause;
  // Before its own probe has arrived a pair may only be left to another transport, which the peer's probe mustn't wait for.
  if (at.probe == 0 || !at.first.is_completed(at.probe)) return;
  at.first.stop();
  if (at.whole) at.whole->stop();
}

/// Returns the outcome of a message that isn't done: pending, or disconnected once the connection is broken and its cause can
/// be told.
Outcome VerbsTransport::unless_broken(const Peer& at) {
  if (at.broken.empty()) return Outcome::pending;
  parts_->ask_port();
  return parts_->port_trouble.empty() && posix::now_ns() < at.told_ns ? Outcome::pending : Outcome::disconnected;
}

std::string VerbsTransport::why_broken(const Peer& at) const {
  std::string why = fmt::format("{} to {}: {}", parts_->port.text(), at.address.port, at.broken);
  for (const std::string& trouble : {parts_->port_trouble, parts_->address_trouble}) {
    if (!trouble.empty()) why += "; " + trouble;
  }
  return why;
}

void VerbsTransport::look_at_events() {
  Parts& parts = *parts_;
  parts.rounds_since_events = 0;
  DeviceEvent event;
  while (parts.events->next(event)) {
    if (event.port == parts.port.port.number && event.port_changed) {
      parts.port_trouble =
          event.port_is_up ? std::string() : fmt::format("{} port {} is down", parts.port.port.device, parts.port.port.number);
    }
    if (event.port == parts.port.port.number && event.addresses_changed) parts.ask_address();
    if (event.breaks == DeviceEvent::Extent::nothing) continue;
    for (const std::unique_ptr<Peer>& each : parts.peers) {
      if (!each) continue;
      const bool of_this =
          event.breaks == DeviceEvent::Extent::queue_pair &&
          (event.queue_pair == each->first.number() || (each->whole && event.queue_pair == each->whole->number()));
      if (of_this || event.breaks == DeviceEvent::Extent::device) {
        if (each->broken.empty()) each->flushed = of_this;  // the failed completion may tell more
        break_lanes(*each, fmt::format("{} on {}", event.text, parts.port.text()));
      }
    }
  }
}

/// Asks for the port's state: the event of a port that went down may come after the requests that failed because of it.
void VerbsTransport::Parts::ask_port() {
  ibv_port_attr now{};
  const auto number = static_cast<std::uint8_t>(port.port.number);
  if (!port_trouble.empty() || query_port(device.get(), number, now) != 0 || now.state == IBV_PORT_ACTIVE) return;
  port_trouble = fmt::format("{} port {} is down", port.port.device, port.port.number);
}

/// Compares the port's addresses with those that peers were told: a connection outlives their loss at best for a while, and what
/// fails then shall name it.
void VerbsTransport::Parts::ask_address() {
  const Ports now = ports_of(device.get());
  const auto here = std::ranges::find(now.ports, port.port.number, &Port::number);
  std::string trouble;
  if (here == now.ports.end()) {
    trouble = fmt::format("{} is gone", port.port.text());
  } else {
    const auto gid = std::ranges::find(here->gids, port.gid.index, &Gid::index);
    const auto key = static_cast<std::size_t>(port.pkey_index);
    if (gid == here->gids.end())
      trouble = fmt::format("GID {} of {}, {}, is gone", port.gid.index, port.port.text(), port.gid.text());
    else if (gid->bytes != port.gid.bytes)
      trouble = fmt::format("GID {} of {} was {}, and is {}", port.gid.index, port.port.text(), port.gid.text(), gid->text());
    else if (here->lid != port.port.lid)
      trouble = fmt::format("LID of {} was {}, and is {}", port.port.text(), port.port.lid, here->lid);
    else if (!port.port.ethernet && key < here->pkeys.size() && here->pkeys[key] != port.pkey)
      trouble = fmt::format("partition {:#x} of {} is gone", port.pkey, port.port.text());
  }
  if (!trouble.empty() && trouble != address_trouble)
    logger().warn("{}: connections over it will fail, at the latest when they are made anew", trouble);
  address_trouble = std::move(trouble);
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
    QueuePair& by = each->ready ? *each->pair : each->first;
    const bool awaited =
        std::any_of(each->in.begin(), each->in.end(), [](const VerbsReceive& in) { return in.last > in.prefix; }) ||
        std::any_of(each->out.begin(), each->out.end(), [](const VerbsSend& out) { return out.last > out.taken; });
    if (signs != each->seen || each->quiet_since_ns == 0 || !awaited) {
      each->seen = signs;
      each->quiet_since_ns = now;
    } else if (now - each->quiet_since_ns >= patience && by.room() > 0 &&
               by.is_completed(by.last_signalled())) {  // requests that aren't signalled may be done long since
      each->quiet_since_ns = now;
      const std::uint64_t request = each->nudge(by, std::nullopt, true);
      if (request == 0) break_lanes(*each, by.post_error());
      each->question = QueuePair::wr_id_of(Peer::tag(each->number, &by != &each->first), request);
    }
  }
}

std::uint64_t VerbsTransport::arm() {
  if (parts_->events) {
    ask_silent_peers();
    parts_->events->arm();
    look_at_events();
  }
  std::uint64_t wake_ns = kNoDeadline;
  for (const Peer* each : parts_->linking) wake_ns = std::min(wake_ns, each->growth.next_try_ns);
  return wake_ns;
}
void VerbsTransport::disarm() {
  if (parts_->events) parts_->events->disarm();
}
int VerbsTransport::descriptor() const { return parts_->events ? parts_->events->descriptor() : -1; }

bool VerbsTransport::close(int number) {
  Peer& to = peer(number);
  if (!to.linked || (to.broken.empty() && finished_sending(to))) return true;
  if (to.broken.empty()) return false;
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
