// recv: one message from another member, in pieces, complete when it is in the buffer.
#include "core/collectives/exchange.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task receive_message(Collective& me, const Arguments& call) {
  Landing landing(me, call.recv.as_bytes());
  co_await me.turn();
  if (call.posted == kNotNow) co_await ArrivedInPieces(landing, call.source, call.recv.as_bytes());
  else co_await Arrival::adopt(landing, call.posted, call.source, call.recv.as_bytes());
  co_await me.finished();
}

}  // namespace tsprun::detail
