// Scenarios of verbs_peer in which a port or a machine goes away, or comes late; each runs on both machines, in lock step, and
// throws at the first thing that doesn't hold.
#pragma once

namespace tsprun::detail::test {

/// A receiver's port that is down for a moment is survived: the sender's adapter tries again. (A send through the own dead port
/// fails at once on soft-RoCE, with IBV_WC_LOC_QP_OP_ERR: see port_down.)
void port_flap();
/// A machine cut off, then joined again: the lanes break within the deadline, with the cause.
void cut();
/// A machine that only receives notices that its peer is gone, because it asks after a while of silence. Silence alone breaks
/// nothing.
void silence();
/// A sender that has announced a large message and waits for its grant has nothing in flight either.
void ungranted();
/// A peer that is gone before it has opened its end of a queue breaks the lanes, too.
void unopened();
/// What is sent before the peer knows of the queue is the caller's at once, up to the lane's credits, and arrives in order.
void early();
/// A sender whose first small message waits for a peer that doesn't answer has nothing in flight either, and notices when that
/// peer is gone.
void unanswered();
/// The own port down for good: the cause names it.
void port_down();

}  // namespace tsprun::detail::test
