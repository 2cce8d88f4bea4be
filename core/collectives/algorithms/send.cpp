// send: one message to another member, complete when the buffer may be reused.
#include "core/collectives/exchange.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task send_message(Collective& me, const Arguments& call) {
  Offer offer(me, call.send.as_bytes(), call.send.bytes(), Readers::one, Owner::sender);
  co_await me.turn();
  co_await Present{me, call.root};
  co_await offer.all_sent_to(call.root);
  co_await offer.drained();
  co_await me.finished();
}

}  // namespace tsprun::detail
