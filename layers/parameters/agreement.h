// Runs work that can fail on one rank alone, such as reading a file, so that all ranks learn of the failure and none waits for a
// rank that gave up.
#pragma once

#include "tsprun/communicator.h"

#include <functional>

namespace tsprun::detail {

/// Runs `body` and returns when it has returned on all ranks. Collective. If it threw on any rank, every rank throws the same
/// error: that of the lowest such rank, with this rank as the culprit. Failures of the job itself (a rank that died) end it as
/// they end any wait.
void agree(Communicator& ranks, const std::function<void()>& body);

}  // namespace tsprun::detail
