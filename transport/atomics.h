// What shared memory is made of: atomics, and plain words whose accesses atomics order. The protocols between processes
// (doorbell.h, shm/lane.h, core's flight board) take it as a template parameter, so that a checker of relaxed memory orders can
// run them, as they are, instead of a processor. docs/architecture.md has the argument for each pair of accesses.
#pragma once

#include <atomic>

namespace tsprun::detail {

/// The machine's own.
struct SystemAtomics {
  template <class T>
  using Atomic = std::atomic<T>;
  /// A word that one process at a time may touch.
  template <class T>
  using Plain = T;
};

}  // namespace tsprun::detail
