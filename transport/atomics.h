// What shared memory is made of: atomics, and plain words whose accesses atomics order. The protocols between processes
// (doorbell.h, shm/lane.h, core's flight board) take it as a template parameter, so that a checker of relaxed memory orders can
// run them, as they are, instead of a processor. docs/architecture.md has the argument for each pair of accesses.
#pragma once

#include <atomic>
#include <cstddef>

namespace tsprun::detail {

/// Longest cache line of the machines that a build may run on, in bytes: words that one process writes often and another reads
/// often lie so far apart. It is 64 on x86-64; some processors of aarch64 have 64, others 128.
#if defined(__aarch64__)
inline constexpr std::size_t kLongestLine = 128;
#else
inline constexpr std::size_t kLongestLine = 64;
#endif

/// The machine's own.
struct SystemAtomics {
  template <class T>
  using Atomic = std::atomic<T>;
  /// A word that one process at a time may touch.
  template <class T>
  using Plain = T;
};

}  // namespace tsprun::detail
