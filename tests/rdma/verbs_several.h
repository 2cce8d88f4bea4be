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
/// Two adapters that are capped alike carry nearly twice as much as one.
void several_capped();

}  // namespace tsprun::detail::test
