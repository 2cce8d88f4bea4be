// Opens queues when they are first used: until then they cost no registered memory and no receives.
//
//   open():  ring and receives made ── tell_opened(): the door of the other end says where ── it does the same ── both may write
//
// Either end may begin, or both at once.
#include "transport/verbs/parts.h"

#include <fmt/format.h>

#include <cstring>

namespace tsprun::detail::verbs {

/// Makes this end's ring of a queue, if there is none, and tells the peer as soon as possible. What fails breaks the lanes.
void VerbsTransport::open(Peer& with, int stream) {
  std::unique_ptr<Ring>& ring = with.rings[static_cast<std::size_t>(stream)];
  if (!ring) {
    try {
      ring = std::make_unique<Ring>(parts_->pd.get());
    } catch (const Error& error) {
      return break_lanes(with, error.what());
    }
    if (!with.pair.expect_queue()) return break_lanes(with, with.pair.post_error());
  }
  tell_opened(with);
}

/// Writes into the peer's door which queues this end has opened, as far as it doesn't know.
void VerbsTransport::tell_opened(Peer& to) {
  for (int stream = 0; stream < kQueues; ++stream) {
    Ring* const ring = to.ring(stream);
    if (ring == nullptr || ring->told) continue;
    if (!to.linked || !to.broken.empty() || to.pair.room() == 0) return;
    const Region& doors = *parts_->doors;
    const std::size_t offset = static_cast<std::size_t>(stream) * sizeof(Opened);
    std::byte* const place = doors.data() + doors_bytes(parts_->peers.size()) + door_offset(to.number) + offset;
    const Opened mine{reinterpret_cast<std::uint64_t>(ring->region.data()), ring->region.remote_key(), kRingBytes};
    std::memcpy(place, &mine, sizeof mine);
    ring->told = true;
    if (to.pair.write({place, sizeof mine, doors.local_key()}, {to.address.door() + offset, to.address.doors_key},
                      Immediate{News::opened, stream, 0}, true) == 0)
      return break_lanes(to, to.pair.post_error());
  }
}

/// Reads from the door where the peer's ring of a queue is.
void VerbsTransport::take_opened(Peer& from, int stream) {
  Opened there;
  std::memcpy(&there, parts_->doors->data() + door_offset(from.number) + static_cast<std::size_t>(stream) * sizeof there,
              sizeof there);
  if (there.bytes != kRingBytes || from.is_open(stream))
    return break_lanes(from, fmt::format("queue {} was opened with {} bytes, or twice", stream, there.bytes));
  open(from, stream);
  if (from.ring(stream) != nullptr) from.ring(stream)->there = there;
}

}  // namespace tsprun::detail::verbs
