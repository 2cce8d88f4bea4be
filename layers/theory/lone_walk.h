// The time of a step from the program of one rank, walked through alone: as if all ranks did the same at the same time. Kernels
// take what kernel_price.h says, and longer by the machine's factor while messages are under way. An operation begins when it is
// posted and those before it on its stream have left the links; what it takes follows from its bytes and where its group's
// members sit (call_price.h). Operations of several streams share the links within a node evenly, and the NIC. So the order of a
// program, what it hides and what it waits for, counts as in simulate(), and a layout takes milliseconds; what ranks that differ
// wait for each other doesn't count.
#pragma once

#include "core/program/program.h"
#include "layers/theory/kernel_price.h"
#include "layers/theory/machine.h"
#include "layers/theory/step_time.h"

namespace tsprun::detail::theory {

/// Walks through a rank's program, which was recorded with what its operations receive. `facts`: as for kernel_seconds(). Throws
/// what that does, and Error(refused) if the program waits for what it hasn't posted.
StepTime walk(const Program& program, const Machine& machine, const PriceFacts& facts);

}  // namespace tsprun::detail::theory
