// Lets several threads of a rank use its context, and keeps posted operations moving while none of them does: what a program
// needs that can't call tick(), such as one in Python.
//
//   tsprun::Progress progress(context);
//   tsprun::Posted work = progress.post([&](tsprun::Context& rank) { return rank.world().post_all_reduce(…); });
//   …                                  // computes as long as it likes; the operation moves on, and the rank is seen to live
//   work.wait();
//
// There is one lock, which whoever uses the engine holds. A thread that waits drives the engine itself, so that a call followed
// by its wait costs little more than without Progress; only while operations are pending and nobody waits does the progress
// thread drive, and while none is pending it gives a sign of life ten times a second. A thread that wants the engine wakes the
// one that drives, which lets it in. Without a Progress a context works as before, at the same cost.
#pragma once

#include "tsprun/context.h"
#include "tsprun/work.h"

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace tsprun {

namespace detail {
struct PostedState;
struct ProgressState;
}  // namespace detail

/// Handle of an operation that was handed to Progress::post(). Can be copied and dropped freely and used by any thread. When the
/// Progress is gone, the operation is over.
class Posted {
 public:
  /// Returns true once the operation is over, completed or failed, and its `done` has returned. Doesn't make progress.
  bool over() const;
  /// Waits until over(); returns false if it isn't within `at_most` (zero: no limit; the job's own deadline counts in any case).
  /// Throws the failure of the operation, if it failed: as a rule the first failure of the job.
  bool wait(std::chrono::milliseconds at_most = std::chrono::milliseconds(0));
  /// Returns the world ranks for which the operation waits, as this rank sees it now: those that haven't begun the collective, or
  /// the other end of a message; empty if it is over or none is known. For messages about a wait that returned false.
  std::vector<int> missing() const;

 private:
  friend class Progress;
  explicit Posted(std::shared_ptr<detail::PostedState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::PostedState> state_;
};

/// Shares a context among threads and keeps it moving. While it exists, the context and everything obtained from it may be used
/// only within use() and post(). All functions may be called by any thread; in a process that was forked from the rank's they
/// throw Error(refused), and its end doesn't disturb the rank.
class Progress {
 public:
  /// Called once when an operation is over, without argument if it completed, else with its failure, by whichever thread found
  /// out. It may call post() and use(), but must not wait for an operation, nor throw. It should be brief: while it runs,
  /// operations may move on only as far as other threads wait.
  using Done = std::function<void(std::exception_ptr failure)>;

  /// Starts the thread. The context must outlive this object.
  explicit Progress(Context& context);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Stops the thread. Operations that are still pending are over, with Error(interrupted).
  ~Progress();

  /// Waits until no operation is pending, completed or failed; returns false if one still is after the job's timeout. Call it
  /// before the end of a program that may not have waited for all of its operations.
  bool drain();
  /// Calls `call` while no other thread uses the context. It should not wait for other ranks, since all other threads wait
  /// meanwhile. Throws what `call` throws. Within `call`, and that of post(), use(), post() and Posted::wait() throw
  /// Error(refused): the thread would wait for itself.
  void use(const std::function<void(Context&)>& call);
  /// Calls `call`, which posts an operation, as use() does, and looks after its Work. If the operation isn't over within
  /// `at_most` (zero: no limit) and nobody has called its wait(), the job fails: a program that waits in another way would wait
  /// for ever.
  Posted post(const std::function<Work(Context&)>& call, Done done = {},
              std::chrono::milliseconds at_most = std::chrono::milliseconds(0));

 private:
  std::shared_ptr<detail::ProgressState> state_;
};

}  // namespace tsprun
