// Waits for many descriptors at once (epoll), each labelled with its source.
#pragma once

#include "transport/posix.h"

#include <cstdint>
#include <map>
#include <vector>

namespace tsprun::detail::launcher {

/// Owner of a watched descriptor.
enum class Source : std::uint32_t {
  signals,
  terminal,
  stdout_room,
  stderr_room,
  process,
  rank_stdout,
  rank_stderr,
  rank_results,
  store,
  cluster
};

/// A descriptor that became ready.
struct Event {
  Source source;
  int rank;  ///< for sources that belong to a rank
};

/// A set of watched descriptors. Used by one thread.
class EventLoop {
 public:
  /// Throws Error(refused) if epoll isn't to be had.
  EventLoop();

  /// Watches a descriptor until it is ignored: for becoming readable or, with `write`, writable. Does nothing for one that is
  /// watched already, or is -1. Throws Error(refused) if the kernel won't watch it.
  void watch(int descriptor, Source source, int rank = 0, bool write = false);
  /// Stops watching a descriptor.
  void ignore(int descriptor);

  /// Waits at most `milliseconds` and returns the descriptors that are ready.
  std::vector<Event> wait(int milliseconds);

 private:
  posix::UniqueFd epoll_;
  std::map<int, Event> watched_;
};

}  // namespace tsprun::detail::launcher
