// Work that may fail on one rank alone (files), done so that all ranks learn of it and none waits for one that gave up.
#pragma once

#include "core/collectives/communicator.h"

#include <functional>

namespace tsprun {

/// All ranks of the group call it. Runs `body`; returns when it has returned on all ranks. If it threw on any, every rank throws
/// the same: the Error of the lowest such rank, with that rank as the culprit. Failures of the job itself (a rank that died)
/// end it as they end any wait.
void agree(Communicator& ranks, const std::function<void()>& body);

}  // namespace tsprun
