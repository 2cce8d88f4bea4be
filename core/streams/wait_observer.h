// An observer of operations that is told what waits wait for, too.
#pragma once

#include "core/streams/engine.h"

namespace tsprun {

class WaitObserver : public OperationObserver {
 public:
  /// The wait that goes on now looked in vain: of the operation `info` the part of that rank of the world is missing. Called at
  /// every such look, on the engine's thread; must not throw or post.
  virtual void missing(int rank, const OperationInfo& info) = 0;
};

}  // namespace tsprun
