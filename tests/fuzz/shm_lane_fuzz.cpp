// Any bytes in a lane of shared memory, as a peer that has gone mad would leave them: the receiver takes what is whole and
// refuses the rest, and reads and writes nothing outside of lanes, heaps and what it was given.
#include "transport/shm/lane.h"
#include "transport/shm/shm_transport.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using namespace tsprun;
using namespace tsprun::detail;

constexpr Envelope kEnvelope{.signature = 7, .sequence = 1, .tag = 3};
constexpr LaneId kFromZero{0, Stream::kv};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static shm::NodeMemory memory = shm::NodeMemory::create_memfd({.local_ranks = 2, .heap_bytes = 1 << 20, .world_size = 2});
  std::byte* lane = memory.lane(1, 0, Stream::kv);
  std::memset(lane, 0, sizeof(shm::LaneMemory));
  shm::ShmTransport one(memory, 1);

  auto* places = reinterpret_cast<shm::LaneMemory*>(lane)->places;
  Ticket ticket = 0;
  while (size >= 2 + sizeof(shm::Slot) && ticket < shm::kSlots - 1) {
    // How it is asked for, and how far the slot is made to look right.
    const std::uint8_t ask = data[0];
    const std::uint8_t how = data[1];
    std::vector<std::byte> into(ask / 4 * 200);
    shm::Slot& slot = places[(ticket + 1) % shm::kSlots].slot;
    std::memcpy(static_cast<void*>(&slot), data + 2, sizeof slot);
    data += 2 + sizeof slot;
    size -= 2 + sizeof slot;
    slot.flag = ticket + 1;
    if ((how & 1) != 0) slot.bytes = into.size();
    if ((how & 2) != 0) {
      slot.signature = kEnvelope.signature;
      slot.sequence = kEnvelope.sequence;
      slot.tag = kEnvelope.tag;
    }
    if ((how & 4) != 0) slot.kind = static_cast<shm::SlotKind>(1 + static_cast<std::uint64_t>(slot.kind) % 5);
    if ((how & 8) != 0) slot.where %= 1 << 20;
    const bool views = ask % 4 == 1;
    const Ticket asked = views ? one.view(kFromZero, kEnvelope, into.size()) : one.receive(kFromZero, kEnvelope, into);
    if (asked == kNotNow) break;
    ticket = asked;
    const Outcome outcome = one.test_receive(kFromZero, ticket);
    one.found(kFromZero);
    if (outcome != Outcome::done) break;
    if (!views) continue;
    // Reads every byte that it may.
    std::ranges::copy(one.access(kFromZero, ticket, 0, into.size()), into.begin());
    one.release(kFromZero, ticket);
  }
  return 0;
}
