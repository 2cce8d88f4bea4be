// send: one message to another member, in pieces, complete when the buffer may be reused.
#include "core/collectives/exchange.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task send_message(Collective& me, const Arguments& call) {
  const std::size_t bytes = call.send.bytes();
  Offer offer(me, call.send.as_bytes(), std::min(bytes, me.message_piece()), Readers::one, Owner::sender);
  co_await me.turn();
  co_await Present{me, call.root};
  co_await SentInPieces(me, offer, call.root, bytes);
  co_await offer.drained();
  co_await me.finished();
}

}  // namespace tsprun::detail
