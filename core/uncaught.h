// Tells the flight board, and so the verdict, of exceptions that a rank's program doesn't catch.
#pragma once

#include "transport/shm/node_memory.h"

namespace tsprun::detail {

/// Installs the handler of uncaught exceptions (std::set_terminate). Until report_uncaught() it handles errors of joining alone:
/// it prints them and ends the process without a core dump.
void catch_uncaught_early();
/// Makes uncaught exceptions go to the board of the node whose memory this is.
void report_uncaught(const shm::NodeMemory& memory, int rank);

}  // namespace tsprun::detail
