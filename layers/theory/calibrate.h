// Times the kernels of a layout's step: ranks run the schedule as phantoms, whose kernels run and whose operations move nothing.
#pragma once

#include "core/program/program.h"
#include "layers/theory/core_machine.h"
#include "layers/theory/layouts.h"

#include <functional>
#include <vector>

namespace tsprun::detail::theory {

/// A kernel of a program, and its time.
struct TimedKernel {
  KernelCost cost;
  KernelPrice price;
};

/// Kernels of a step, each once, and the time between them.
struct TimedStep {
  std::vector<TimedKernel> kernels;
  double kernel_runs = 0;      ///< how many kernels the step runs
  double between_seconds = 0;  ///< of the step that no kernel took
};

/// Times the kernels of one step of rank `number`, on this thread. Of the runs of a kernel in a step the mean counts, of
/// `passes` steps the median. `before_each` is called before each of these steps: there ranks that do this at the same time wait
/// for each other, since kernels share the memory's bandwidth.
TimedStep time_kernels(const MeshSetting& of, int number, bool training, int passes, const std::function<void()>& before_each);

}  // namespace tsprun::detail::theory
