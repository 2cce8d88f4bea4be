// recv: one message from another member, complete when it is in the buffer.
#include "core/collectives/exchange.h"
#include "core/collectives/registry.h"

namespace tsprun::detail {

Task receive_message(Collective& me, const Arguments& call) {
  Landing landing(me, call.recv.as_bytes());
  Arrival arrival = call.posted == kNotNow ? Arrival(landing, call.source, 0, call.recv.as_bytes())
                                           : Arrival::adopt(landing, call.posted, call.source, call.recv.as_bytes());
  co_await me.turn();
  co_await arrival;
  co_await me.finished();
}

}  // namespace tsprun::detail
