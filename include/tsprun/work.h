// Handles of operations under way, which a communicator's post_…() calls return.
#pragma once

#include "tsprun/types.h"

#include <cstdint>

namespace tsprun {

namespace detail {
class Engine;
}

/// Handle of a posted operation; used by the rank's thread. Can be copied and dropped freely; the operation goes on without it.
/// Must not be used after the context is gone.
///
/// Memory that the operation took from the rank's heap (to receive messages, for instance) is given back when it, or a later
/// operation of its stream, is waited for or found complete by test(). It is not given back at the moment of completion, so that
/// a rank's memory use depends on its program alone and not on timing.
class Work {
 public:
  /// Makes a handle of an operation that is complete.
  Work() = default;
  /// Makes progress; returns true once the operation is complete. Throws the first failure of the job.
  bool test();
  /// Waits until the operation is complete. Throws the first failure of the job, a failure of this wait included.
  void wait();

 private:
  friend class detail::Engine;
  Work(detail::Engine* engine, Stream stream, std::uint64_t number) : engine_(engine), stream_(stream), number_(number) {}
  detail::Engine* engine_ = nullptr;
  Stream stream_ = Stream::control;
  std::uint64_t number_ = 0;  // of the operation on its stream, from 1
};

}  // namespace tsprun
