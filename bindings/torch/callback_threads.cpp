// Hands tasks to threads: one stands by while others are inside tasks.
#include "callback_threads.h"

#include <system_error>
#include <utility>

namespace tsprun::torch_binding {

namespace {

using std::chrono::steady_clock;

/// Time after which a task counts as waiting for another.
constexpr std::chrono::seconds kMoment{2};

thread_local bool in_task = false;

}  // namespace

bool CallbackThreads::inside() { return in_task; }

void CallbackThreads::run(Task task, bool at_once) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool has_thread = !stopping_ && (idle_ != 0 || start_thread() || !threads_.empty());
    if (has_thread) {
      (at_once ? urgent_ : in_order_).push_back(std::move(task));
      changed_.notify_all();
      return;
    }
  }
  task();
}

void CallbackThreads::stop() {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  while (!threads_.empty()) {
    std::vector<std::thread> ending = std::exchange(threads_, {});
    lock.unlock();
    for (std::thread& thread : ending) thread.join();
    lock.lock();
  }
}

/// Starts a thread, which counts as idle until it has taken a task. Returns false if the system gives none.
bool CallbackThreads::start_thread() {
  try {
    threads_.emplace_back([this] { attend(); });
  } catch (const std::system_error&) {
    return false;
  }
  ++idle_;
  return true;
}

/// Returns the queue whose first task may begin now; null: none.
std::deque<CallbackThreads::Task>* CallbackThreads::ready() {
  if (!urgent_.empty()) return &urgent_;
  return in_order_.empty() || steady_clock::now() < next_begins_ ? nullptr : &in_order_;
}

/// Runs in every thread.
void CallbackThreads::attend() {
  ::pthread_sigmask(SIG_SETMASK, &signals_, nullptr);
  in_task = true;
  std::unique_lock<std::mutex> lock(mutex_);
  --idle_;
  while (true) {
    std::deque<Task>* const queue = ready();
    if (queue == nullptr) {
      if (stopping_ && in_order_.empty()) return;
      ++idle_;
      if (in_order_.empty()) changed_.wait(lock);
      else changed_.wait_until(lock, next_begins_);
      --idle_;
      continue;
    }
    Task task = std::move(queue->front());
    queue->pop_front();
    const std::size_t number = queue == &in_order_ ? ++begun_ : 0;
    if (number != 0) next_begins_ = steady_clock::now() + kMoment;
    if (idle_ == 0 && !(urgent_.empty() && in_order_.empty())) start_thread();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    if (number == begun_) next_begins_ = {};
  }
}

}  // namespace tsprun::torch_binding
