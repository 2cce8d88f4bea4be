// send with a tag: a header and, if the payload is small, the payload; else the payload follows once its receive wants it
// (streams/mail.h). Complete when the buffer may be reused.
#include "core/collectives/exchange.h"
#include "core/collectives/registry.h"
#include "core/streams/mail.h"

namespace tsprun::detail {

/// Condition that the message was sent, or its payload is wanted.
struct SentOrWanted {
  Collective& me;
  Mail::Letter& letter;
  int to;
  bool poll() {
    if (letter.sent_or_wanted(me.info())) return true;
    me.set_missing(to);
    return false;
  }
};

/// Condition that the next message on the lane is the payload.
struct HasLane {
  Collective& me;
  Mail::Letter& letter;
  int to;
  bool poll() {
    if (letter.has_lane(me.info())) return true;
    me.set_missing(to);
    return false;
  }
};

Task send_tagged(Collective& me, const Arguments& call) {
  // Looked at before the letter is sent, which may be before this operation's turn: a rank may leave once it has its message.
  const bool never_arrives = me.has_left(call.root);
  Mail::Letter letter(*me.engine().mail(), me.group().member(call.root).world, me.group().id, me.info().tag, call.send.dtype,
                      call.send.as_bytes(), me.info().purpose);
  me.identify(call.root, letter.number());
  const std::size_t bytes = call.send.bytes();
  Offer offer(me, call.send.as_bytes(), std::min(bytes, me.message_piece()), Readers::one, Owner::sender);
  co_await me.turn();
  if (never_arrives) co_await Present{me, call.root};
  co_await SentOrWanted{me, letter, call.root};
  if (!letter.sent()) {
    co_await HasLane{me, letter, call.root};
    co_await SentInPieces(me, offer, call.root, bytes);
    letter.give_back_lane();
    co_await offer.drained();
  }
  co_await me.finished();
}

}  // namespace tsprun::detail
