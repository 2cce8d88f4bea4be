// Opens queues when they are first used: until then they cost no registered memory and no receives.
//
//   open():  ring and receives made ── tell_opened(): the door of the other end says where ── it does the same ── both may write
//
// Either end may begin, or both at once. Small messages that are sent before lie in the mirror of this end's ring (post_held()).
#include "transport/cause.h"
#include "transport/log.h"
#include "transport/verbs/judgement.h"
#include "transport/verbs/parts.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstring>
#include <utility>

namespace tsprun::detail::verbs {

/// Makes this end's ring of a queue, if there is none, and tells the peer as soon as possible. Throws Error(out_of_memory),
/// naming the limit, or Error(refused), and leaves the queue as it was.
void VerbsTransport::open(Peer& with, int stream) {
  std::unique_ptr<Ring>& place = with.rings[static_cast<std::size_t>(stream)];
  if (!place) {
    auto ring = std::make_unique<Ring>(parts_->adapters);
    if (with.pair == nullptr) grow(with);
    // The receives of other ways are all posted when they are made.
    if (with.main == 0 && (with.lost & 1) == 0 && !with.pair->expect_queue())
      throw Error(Cause::refused, fmt::format("verbs: {} on {}", with.pair->post_error(), parts_->first().port.text()));
    place = std::move(ring);
  }
  join(with);
  tell_opened(with);
}

/// Writes into the peer's door which queues this end has opened, as far as it doesn't know.
void VerbsTransport::tell_opened(Peer& to) {
  for (int stream = 0; stream < kQueues; ++stream) {
    Ring* const ring = to.ring(stream);
    if (ring == nullptr || ring->told) continue;
    if (!to.ready || !to.broken.empty() || to.pair->room() == 0) return;
    const Region& doors = *parts_->doors;
    const std::size_t offset = static_cast<std::size_t>(stream) * sizeof(Opened);
    std::byte* const place = doors.data() + doors_bytes(parts_->peers.size()) + door_offset(to.number) + offset;
    Opened mine{.address = reinterpret_cast<std::uint64_t>(ring->region.data()), .bytes = kRingBytes, .unused = 0, .keys = {}};
    for (std::size_t i = 0; i < parts_->adapters.size(); ++i) mine.keys[i] = ring->region.remote_key(i);
    std::memcpy(place, &mine, sizeof mine);
    ring->told = true;
    ring->told_way = to.main;
    const Address& there = to.address_of(to.main);
    if (to.pair->write({place, sizeof mine, doors.local_key(to.adapter_of(to.main))}, {there.door() + offset, there.doors_key},
                       Immediate{News::opened, stream, 0}, true) == 0)
      return lose(to, to.main, to.pair->post_error());
  }
}

/// Reads from the door where the peer's ring of a queue is. If this end can't have a ring, too, the lanes break at both ends:
/// what the peer has for this one would never leave.
void VerbsTransport::take_opened(Peer& from, int stream) {
  Opened there;
  std::memcpy(&there, parts_->doors->data() + door_offset(from.number) + static_cast<std::size_t>(stream) * sizeof there,
              sizeof there);
  if (const std::string trouble = trouble_of(there, from.is_there(stream)); !trouble.empty()) return break_lanes(from, trouble);
  try {
    open(from, stream);
  } catch (const Error& error) {
    return give_up(from, error.what());
  }
  from.ring(stream)->there = there;
}

/// Breaks the lanes of a peer that this end can't reach any more, and says why: the peer learns only that they are broken, and
/// this rank's waits may be for others.
void VerbsTransport::give_up(Peer& at, const std::string& why) {
  logger().warn("the way by RDMA to {} is given up: {}", at.address.port, why);
  break_lanes(at, why);
}

}  // namespace tsprun::detail::verbs
