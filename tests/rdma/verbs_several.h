// Scenarios of two machines with two adapters each.
#pragma once

namespace tsprun::detail::test {

/// A rank alone spreads large messages over both adapters, and over several queue pairs by each; all sizes arrive whole, both
/// ways.
void several();
/// Where one end or both take one adapter, the other one carries nothing.
void several_or_one();
/// An adapter that doesn't reach the peer is left out, and costs no message.
void several_unreachable();
/// Nor does one carry anything with which the heap can't be registered. Needs verbs_shim.
void several_unregistered();
/// An adapter whose port goes down in mid-run, the first or the second, costs no message and little time.
void several_port_down();
/// Nor does one whose frames are lost in silence, once the retries are over.
void several_silent();
/// Nor does a queue pair that fails at any completion, at one end, while the others work, or still join, also where a queue is
/// first used meanwhile. Needs verbs_shim.
void several_lost();
/// Nor do queue pairs that fail at both ends, mostly unlike ones, while these may be agreeing on the first. Needs verbs_shim.
void several_lost_at_both();
/// A port that goes down is named in the log also if a request failed before the port said so. Needs verbs_shim.
void several_explained();
/// Two adapters that are capped alike carry nearly twice as much as one.
void several_capped();

}  // namespace tsprun::detail::test
