// send_recv: a message to one member and one from another. Neither waits for the other, so all ranks of a ring may call it at
// once: a rank receives even if its own message couldn't be sent yet, because the peer may be unable to take that before its own
// is read. On the wire it is a send and a recv, each with its own number and signature. A rank's message to itself is a copy.
#include "core/collectives/exchange.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task send_and_receive(Collective& me, const Arguments& call) {
  if (call.root == me.rank()) {
    co_await me.turn();
    co_await LocalCopy(me, call.recv.data, call.send.data, call.send.bytes());
    co_await me.finished();
  }
  const std::size_t bytes = call.send.bytes();
  Offer offer(me, call.send.as_bytes(), std::min(bytes, me.message_piece()), Readers::one, Owner::sender);
  SentInPieces sending(me, offer, call.root, bytes);
  Landing landing(me, call.recv.as_bytes());
  ArrivedInPieces arrival(landing, call.source, call.recv.as_bytes());
  co_await me.turn();
  co_await Present{me, call.root};
  co_await all_of(sending, arrival);
  co_await offer.drained();
  co_await me.finished();
}

}  // namespace tsprun::detail
