// Threads that complete futures: a future's callbacks are the program's, and may wait for other operations and other futures.
#pragma once

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tsprun::torch_binding {

/// Runs tasks, each of which completes a future with its callbacks, in the order in which they were given, one after the other. A
/// task that takes longer than two seconds counts as waiting for another, so the next begins beside it. There is no thread before
/// the first task; where the system gives none, a task runs in the thread that hands it over. Used by any thread, but not in a
/// process that was forked after the first task: not even destroyed there.
class CallbackThreads {
 public:
  using Task = std::function<void()>;

  CallbackThreads() { ::pthread_sigmask(SIG_SETMASK, nullptr, &signals_); }
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;
  ~CallbackThreads() { stop(); }

  /// Returns true in a thread that runs a task.
  static bool inside();
  /// Runs the task soon. `at_once`: doesn't wait for those before it, since a task that runs now may wait for it.
  void run(Task task, bool at_once);
  /// Waits until all tasks have returned, and ends the threads; from now on run() runs tasks in the calling thread.
  void stop();

 private:
  bool start_thread();
  void attend();
  std::deque<Task>* ready();

  sigset_t signals_{};  // blocked where this was made, and so in its threads, whichever thread starts them
  std::mutex mutex_;    // guards what follows; never held while a task runs
  std::condition_variable changed_;
  std::deque<Task> urgent_;
  std::deque<Task> in_order_;
  std::chrono::steady_clock::time_point next_begins_;  // unless the one in order that began last returns before
  std::size_t begun_ = 0;                              // tasks in order so far
  std::size_t idle_ = 0;                               // threads that could take a task, or have just been started
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tsprun::torch_binding
