// barrier, rooted: every rank sends an empty message to rank 0, which answers all when it has them. Two steps, 2(n−1) messages
// among all ranks.
#include "core/collectives/peers.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

namespace {
constexpr int kAnsweringRank = 0;
constexpr std::uint32_t kAnswer = 1;  // step
}  // namespace

Task rooted_barrier(Collective& me, const Arguments&) {
  Offer nothing(me);
  const bool is_root = me.rank() == kAnsweringRank;
  co_await me.turn();
  if (is_root) {
    PeerMessages messages(me, 0, 0, nullptr);
    co_await messages;
    co_await SendToPeers(me, nothing, kAnswer, 0);
  } else {
    co_await nothing.sent(kAnsweringRank, 0, 0, 0);
    co_await Message(me, kAnsweringRank, kAnswer, 0, nullptr);
  }
  co_await me.finished();
}

}  // namespace tsprun::detail
