// Waiting for many descriptors at once (epoll), with an owner's token for each.
#pragma once

#include "transport/posix.h"

#include <cstdint>
#include <map>
#include <vector>

namespace tsprun::launcher {

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

struct Event {
  Source source;
  int rank;  ///< of the sources that belong to a rank
};

class EventLoop {
 public:
  EventLoop();

  /// Asks, or no longer asks, for a descriptor to become readable (`write`: writable). Asking twice is harmless.
  /// Throws Error(refused) if the kernel won't watch it.
  void watch(int descriptor, Source source, int rank = 0, bool write = false);
  void ignore(int descriptor);

  /// What has happened, after at most `milliseconds`.
  std::vector<Event> wait(int milliseconds);

 private:
  posix::UniqueFd epoll_;
  std::map<int, Event> watched_;
};

}  // namespace tsprun::launcher
