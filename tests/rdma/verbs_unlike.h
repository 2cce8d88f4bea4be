// Scenarios of verbs_peer with adapters unlike soft-RoCE: verbs_shim stands between, and alters what the adapter answers. Each
// runs on both machines, in lock step, and throws at the first thing that doesn't hold.
#pragma once

namespace tsprun::detail::test {

/// Ports up to 255, a largest message of no bytes, other transports than InfiniBand's: each is listed, and named as the reason.
void odd_devices();
/// Queue pairs and registrations that fail at the n-th call: a reason to reach nobody or one peer, an error where a device is
/// named.
void odd_failures();
/// A ring that can't be registered at a queue's first message: an error where the call was made, broken lanes if a peer asked for
/// it.
void odd_rings();
/// A whole queue pair, or a completion queue for it, that can't be made at a peer's first message: as rings. One that can't be
/// linked at once is linked later.
void odd_growth();
/// Inline data from none to 512 bytes.
void odd_inline();
/// Checks that queue pairs are told what settings and ports ask for: headers, classes, partitions, retries.
void odd_addresses();
/// Completions that fail, a queue that can't be read and requests that can't be posted break the connection, by their names.
void odd_completions();
/// A link that is gone for longer than a few seconds is survived at the default deadline.
void long_flap();
/// An address that is taken from the port in mid-run is named.
void lost_address();
/// A network that takes no full packets is named, with the option that helps.
void small_packets();

}  // namespace tsprun::detail::test
