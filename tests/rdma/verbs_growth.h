// Scenarios of verbs_peer about what peers cost before they are used, and how their queue pairs and queues come to be. Each runs
// on both machines, in lock step, and throws at the first thing that doesn't hold.
#pragma once

namespace tsprun::detail::test {

/// Idle peers cost next to no pinned memory, and a queue costs some from its first message on.
void queues();
/// One end has a small queue pair and the other a whole one, which carries no messages then: one of a job's nodes may have other
/// settings, or fewer ranks elsewhere.
void mixed();

}  // namespace tsprun::detail::test
