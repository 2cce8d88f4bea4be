// Lets further queue pairs with a peer carry payloads: one by each other adapter that both ends have, and more by each where both
// are set to that. They are made when the two first use each other, and tell of themselves by the one that carries messages:
//
//   join():  made, receives posted ── "number" ── the peer's number is here: RTR, RTS ── "linked" ── the peer's "linked" is here:
//            probe ── the probe has arrived: "proved" ── the peer's "proved" is here: chunks of payloads leave by it
//
// Nobody waits for that: until then, and without them, payloads go by the first. One that can't be made or linked, or whose probe
// fails, is left out at both ends, which "left" tells. Way w of a peer goes by adapter w, modulo the number of adapters that the
// two have in common: both ends count alike.
#include "transport/cause.h"
#include "transport/log.h"
#include "transport/verbs/parts.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::verbs {

/// Returns the adapters, but for the first, that this end and another have in common.
std::vector<int> VerbsTransport::common_adapters(const Address& there) const {
  std::vector<int> common;
  for (int i = 1; i < std::min(static_cast<int>(parts_->adapters.size()), there.adapters()); ++i) {
    const Address other = there.by(i);
    if (why_unreachable(parts_->adapters[static_cast<std::size_t>(i)]->port, other, other.port).empty()) common.push_back(i);
  }
  return common;
}

/// Lists the further ways to a peer.
void VerbsTransport::list_others(Peer& with) {
  std::vector<int> adapters = common_adapters(with.address);
  adapters.insert(adapters.begin(), 0);
  const std::size_t pairs = std::min(parts_->pairs, static_cast<std::size_t>(with.address.pairs));
  const std::size_t ways = std::min(adapters.size() * pairs, static_cast<std::size_t>(kMostWays));
  with.others.clear();
  for (std::size_t way = 1; way < ways; ++way) {
    const int adapter = adapters[way % adapters.size()];
    const auto number = static_cast<std::size_t>(adapter);
    with.others.emplace_back(number, parts_->adapters[number]->port.port.gbps, with.address.by(adapter));
  }
}

/// Begins to make the further ways to a peer that is used.
void VerbsTransport::join(Peer& with) {
  with.joining = true;
  advance_others(with);
}

void VerbsTransport::advance_others(Peer& at) {
  for (std::size_t way = 1; way < at.ways() && at.joining && !at.closing && at.ready && at.broken.empty(); ++way)
    advance_other(at, way);
}

/// Does and tells what can be done and told of a further way.
void VerbsTransport::advance_other(Peer& at, std::size_t way) {
  Other& other = at.others[way - 1];
  if (other.carries() || ((at.lost | at.to_lose) >> way & 1) != 0) return;
  const auto tell = [&](bool& told, JoinNews news) {
    if (told || !at.broken.empty() || at.pair->room() == 0) return;
    told = true;
    if (at.nudge(at.main, Immediate{News::join, static_cast<int>(way), news.encode()}, true) == 0)
      lose(at, at.main, at.pair->post_error());
  };
  if (!other.pair && other.left_out.empty()) {
    Adapter& by = *parts_->adapters[other.adapter];
    try {
      other.pair.emplace(by.pd.get(), by.events->queue_for(kPayloads.completions()), by.port, kPayloads,
                         Peer::tag(at.number, Peer::kOthers + static_cast<std::uint32_t>(way) - 1), parts_->first_packet);
      by.events->take(kPayloads.completions());
    } catch (const Error& error) {
      leave_out(at, way, error.what());
    }
  }
  if (other.left_out.empty()) {
    tell(other.told, {JoinNews::Step::number, other.pair->number()});
    if (other.told && other.there.number != 0 && !other.linked) link_other(at, way);
  }
  if (other.left_out.empty() && other.linked) {
    tell(other.told_linked, {JoinNews::Step::linked, 0});
    if (other.told_linked && other.there.linked && other.probe == 0) probe_other(at, way);
  }
  if (other.left_out.empty() && other.probe != 0 && other.pair->is_completed(other.probe))
    tell(other.told_proved, {JoinNews::Step::proved, 0});
  if (!other.left_out.empty() && !other.there.left) tell(other.told_left, {JoinNews::Step::left, 0});
  if (other.carries()) {
    logger().debug("payloads go by {} to {}, too", parts_->adapters[other.adapter]->port.port.text(), other.address.port);
  }
}

/// Links a further way with the peer's. If the kernel can't find the peer's Ethernet address now, link_again() tries again, a few
/// times: each try holds up what the first way carries.
void VerbsTransport::link_other(Peer& at, std::size_t way) {
  constexpr std::uint64_t kTryAgainNs = 250'000'000;
  Other& other = at.others[way - 1];
  if (posix::now_ns() < other.next_try_ns) return;
  try {
    other.linked = other.pair->connect(other.address, other.there.number, parts_->adapters[other.adapter]->port, parts_->limits,
                                       ++other.tries >= kJoinTries);
  } catch (const Error& error) {
    return leave_out(at, way, error.what());
  }
  if (other.linked) return;
  other.next_try_ns = posix::now_ns() + kTryAgainNs;
  wait_to_link(at);
}

/// Writes what nobody reads: first a little, then what fills a packet, as the probe of the first way.
void VerbsTransport::probe_other(Peer& at, std::size_t way) {
  Other& other = at.others[way - 1];
  const Region& doors = *parts_->doors;
  const std::uint32_t key = doors.local_key(other.adapter);
  const QueuePair::Target there{other.address.doors, other.address.doors_key};
  const std::size_t packet = std::min(packet_bytes(parts_->adapters[other.adapter]->port, other.address), kFullProbeBytes);
  if (other.pair->write({doors.data(), kProbeBytes, key}, there, std::nullopt, true) != 0)
    other.probe = other.pair->write({doors.data(), packet, key}, there, Immediate{News::credit, 0, 0}, true);
  if (other.probe == 0) leave_out(at, way, other.pair->post_error());
}

/// Gives up a further way that doesn't carry payloads yet.
void VerbsTransport::leave_out(Peer& at, std::size_t way, const std::string& why) {
  Other& other = at.others[way - 1];
  other.left_out = why;
  if (other.pair) other.pair->stop();
  Adapter& by = *parts_->adapters[other.adapter];
  // Of an adapter that reaches nobody one line says enough.
  const auto level = !at.closing && !by.has_told ? spdlog::level::info : spdlog::level::debug;
  by.has_told = true;
  logger().log(level, "payloads don't go by {} to {}: {}", by.port.port.text(), other.address.port, why);
}

/// Notes what a peer tells of a further way.
void VerbsTransport::take_join(Peer& from, std::size_t way, std::uint32_t low) {
  if (way >= from.ways()) return break_lanes(from, "a queue pair joins that the two ends don't have in common");
  // Once a way is lost nothing joins any more, and words of lost ways, which may overtake these, say what carries (losing.cpp).
  if ((from.lost | from.to_lose | from.there.lost) != 0) return;
  Other& other = from.others[way - 1];
  const JoinNews news = JoinNews::decode(low);
  if (const std::string_view trouble = trouble_of(news, other.there, other.told); !trouble.empty())
    return break_lanes(from, std::string(trouble));
  switch (news.step) {
    case JoinNews::Step::number: other.there.number = news.number; break;
    case JoinNews::Step::linked: other.there.linked = true; break;
    case JoinNews::Step::proved: other.there.proved = true; break;
    case JoinNews::Step::left: other.there.left = true; break;
  }
  if (other.there.left && other.left_out.empty()) leave_out(from, way, "the other end leaves it out");
  join(from);
}

}  // namespace tsprun::detail::verbs
