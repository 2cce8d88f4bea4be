// recv with a tag: the first message that fits source and tag, from whatever came (streams/mail.h). Complete when it is in the
// buffer.
#include "core/collectives/exchange.h"
#include "core/collectives/registry.h"
#include "core/streams/mail.h"

#include <algorithm>

namespace tsprun::detail {

namespace {

/// Returns the world ranks of which one may be the sender.
PerPeer<int> sources_of(const Collective& me, int source) {
  PerPeer<int> sources;
  for (int i = 0; i < me.peers(); ++i) {
    if (source == kAnySource || source == me.peer(i)) sources.push_back(me.group().member(me.peer(i)).world);
  }
  return sources;
}

int group_rank(const Collective& me, int world) {
  return static_cast<int>(std::ranges::find(me.group().ranks, world) - me.group().ranks.begin());
}

}  // namespace

/// Condition that the message is here, or its payload is the next on its sender's lane.
struct HereOrComing {
  Collective& me;
  Mail::Request& request;
  int source;
  bool poll() {
    if (request.here_or_coming(me.info())) return true;
    if (request.from() >= 0) me.set_missing_world(request.from());
    else if (source == kAnySource) me.set_missing_whoever();
    else me.set_missing(source);
    return false;
  }
};

Task receive_tagged(Collective& me, const Arguments& call) {
  const PerPeer<int> sources = sources_of(me, call.source);
  Mail::Request request(*me.engine().mail(), {sources.data(), sources.size()}, me.group().id, me.info().tag, call.recv.dtype,
                        call.recv.as_bytes(), me.info().purpose);
  co_await me.turn();
  co_await HereOrComing{me, request, call.source};
  const int from = group_rank(me, request.from());
  me.identify(from, request.header().number);
  if (call.received != nullptr) *call.received = {.source = from, .tag = request.header().tag};
  if (request.coming()) {
    Landing landing(me, call.recv.as_bytes());
    co_await ArrivedInPieces(landing, from, call.recv.as_bytes());
    request.received();
  }
  co_await me.finished();
}

}  // namespace tsprun::detail
