// An observer of operations that also learns which rank's part a wait finds missing. Traces use it.
#pragma once

#include "core/streams/engine.h"

namespace tsprun::detail {

/// Observer of completed operations and of waits: those of blocking calls, and those for posted operations.
class WaitObserver : public OperationObserver {
 public:
  /// Called when a wait begins whose operation isn't complete yet.
  virtual void wait_begins() = 0;
  /// Called when that wait has ended well. Times of the engine's clock.
  virtual void wait_ended(std::uint64_t begin_ns, std::uint64_t end_ns) = 0;
  /// Called at every poll of a wait that found nothing to do: operation `info` lacks the part of world rank `rank`. Called on the
  /// engine's thread; must not throw or post.
  virtual void missing(int rank, const OperationInfo& info) = 0;
};

}  // namespace tsprun::detail
