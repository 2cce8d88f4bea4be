// Replaces small queue pairs by whole ones when they are first used. A rank of a large job has a queue pair with each rank of
// other nodes from the start, by which the probe goes and by which a dead peer is noticed; it uses few of them, and adapters pin
// memory for the queues of all. So in such jobs the first queue pairs are small, and carry no messages:
//
//   grow():  whole one made, receives posted ── "whole", its number ── the peer does the same ── the peer's number is here:
//            RTR, RTS ── "ready" ── the peer's "ready" is here: messages leave by it
//
// Either end may begin, or both at once: each tells each of the two once, in this order. News travels by the small queue pair,
// which loses, doubles and reorders nothing, so each end knows that the other can receive before it sends. A peer that computes
// answers later; its adapter answers at once. One that is gone makes the small one fail, as it does whole ones: requests in
// flight do, and after a silence a question (ask_silent_peers()).
#include "transport/cause.h"
#include "transport/verbs/judgement.h"
#include "transport/verbs/parts.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::verbs {

/// Makes this end's whole queue pair with a peer. Throws Error(out_of_memory | refused), and leaves the peer as it was.
void VerbsTransport::grow(Peer& with) {
  Parts& parts = *parts_;
  Adapter& by = parts.first();
  with.whole.emplace(by.pd.get(), by.events->queue_for(kWhole.completions()), by.port, kWhole,
                     Peer::tag(with.number, Peer::kWholeOne), parts.first_packet);
  by.events->take(kWhole.completions());
  with.pair = &*with.whole;
  advance(with);
}

/// Tells and links what can be told and linked of a whole queue pair.
void VerbsTransport::advance(Peer& at) {
  Growth& growth = at.growth;
  if (!at.whole || at.was_ready || !at.linked || !at.broken.empty()) return;
  const auto tell = [&](bool& told, News news, std::uint32_t low) {
    if (told || at.first.room() == 0) return;
    told = true;
    if (at.nudge(at.first, Immediate{news, 0, low}, true) == 0) break_lanes(at, at.first.post_error());
  };
  tell(growth.told, News::whole, at.whole->number());
  if (growth.told && growth.there.number != 0 && !growth.linked) link_whole(at);
  if (growth.linked) tell(growth.told_ready, News::ready, 0);
  at.ready = at.was_ready = growth.linked && growth.told_ready && growth.there.ready && at.broken.empty();
}

/// Links the whole queue pair with the peer's. If the kernel can't find the peer's Ethernet address now, link_again() tries again
/// until half of the deadline is over.
void VerbsTransport::link_whole(Peer& at) {
  constexpr std::uint64_t kTryAgainNs = 250'000'000;  // a try may take a second of the kernel's
  Growth& growth = at.growth;
  std::uint64_t now = posix::now_ns();
  if (now < growth.next_try_ns) return;
  if (growth.give_up_ns == 0) growth.give_up_ns = now + parts_->options.timeout_ns / 2;
  try {
    growth.linked =
        at.whole->connect(at.address, growth.there.number, parts_->first().port, parts_->limits, now >= growth.give_up_ns);
  } catch (const Error& error) {
    return give_up(at, error.what());
  }
  if (growth.linked) return;
  now = posix::now_ns();
  growth.next_try_ns = now + kTryAgainNs;
  wait_to_link(at);
}

/// Notes a peer of which a queue pair couldn't be linked at once.
void VerbsTransport::wait_to_link(Peer& at) {
  std::vector<Peer*>& linking = parts_->linking;
  if (std::find(linking.begin(), linking.end(), &at) == linking.end()) linking.push_back(&at);
}

/// Tries again to link what couldn't be linked at once, when it is time.
void VerbsTransport::link_again() {
  std::vector<Peer*>& linking = parts_->linking;
  if (linking.empty()) return;
  const std::uint64_t now = posix::now_ns();
  for (Peer* each : std::vector<Peer*>(linking)) {
    if (now >= each->next_try_ns()) pump(*each);
  }
  std::erase_if(linking, [](const Peer* each) { return each->next_try_ns() == kNoDeadline || !each->broken.empty(); });
}

/// Notes what a peer tells of its whole queue pair, and makes this end's if it has begun. If this end can't, the lanes break at
/// both ends.
void VerbsTransport::take_growth(Peer& from, std::uint32_t word) {
  if (!from.broken.empty()) return;
  const Immediate news = Immediate::decode(word);
  WholeThere& there = from.growth.there;
  if (const std::string_view trouble = trouble_of(news, there, from.growth.told); !trouble.empty())
    return break_lanes(from, std::string(trouble));
  if (news.news == News::ready) there.ready = true;
  if (news.news == News::whole) there.number = news.low;
  if (there.number == 0 || from.whole) return;  // the caller pumps
  try {
    grow(from);
  } catch (const Error& error) {
    give_up(from, error.what());
  }
}

}  // namespace tsprun::detail::verbs
