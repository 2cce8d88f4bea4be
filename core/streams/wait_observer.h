// An observer of operations that also learns which rank's part a wait finds missing. Traces use it.
#pragma once

#include "core/streams/engine.h"

namespace tsprun {

/// Observer of completed operations and of waits.
class WaitObserver : public OperationObserver {
 public:
  /// Called at every poll of a wait that found nothing to do: operation `info` lacks the part of world rank `rank`. Called on the
  /// engine's thread; must not throw or post.
  virtual void missing(int rank, const OperationInfo& info) = 0;
};

}  // namespace tsprun
