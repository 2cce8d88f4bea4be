// The direct barrier: a rank that has a message from every other rank knows that all have arrived.
#include "core/collectives/operations.h"

namespace tsprun::detail {

Barrier::Barrier(const Call& call) : Collective(call) { messages_.fill(static_cast<std::size_t>(peers()), Incoming()); }

bool Barrier::step(Engine& engine) {
  while (sent_ < peers() && offer_.send(*this, peer(sent_), 0, 0, 0)) ++sent_;
  while (posted_ < peers() && messages_[static_cast<std::size_t>(posted_)].post(*this, peer(posted_), 0, 0, nullptr)) ++posted_;
  for (; arrived_ < posted_; ++arrived_) {
    if (!messages_[static_cast<std::size_t>(arrived_)].arrived(*this, engine)) {
      set_missing(peer(arrived_));
      return false;
    }
  }
  return sent_ == peers() && arrived_ == peers();
}

}  // namespace tsprun::detail
