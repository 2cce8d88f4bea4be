// Threads that take tasks from a common counter, and sleep between runs, where each has a core of its own after a short spin.
#include "core/kernels/parallel.h"

#include "transport/cpu_relax.h"
#include "transport/signals_blocked.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

namespace tsprun::detail::kernels {

namespace {

/// Time of spinning before a sleep: longer than what decoding does between two products of matrices.
constexpr std::chrono::microseconds kSpin(200);
/// Looks between readings of the clock.
constexpr int kLooksPerClock = 64;

}  // namespace

struct Pool::Run {
  std::size_t count;
  Task task;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;  // written by the thread that set `failed`
};

Pool::Pool(std::size_t threads, Idle idle) : idle_(idle) {
  const SignalsBlocked blocked;
  workers_.reserve(threads > 0 ? threads - 1 : 0);
  for (std::size_t thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { serve(thread); });
}

Pool::~Pool() {
  closing_ = true;
  ++generation_;
  { const std::lock_guard lock(mutex_); }
  begin_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::work(Run& run, std::size_t thread, const Tick* tick) {
  try {
    while (!run.failed.load(std::memory_order_relaxed)) {
      const std::size_t task = run.next.fetch_add(1, std::memory_order_relaxed);
      if (task >= run.count) return;
      run.task(task, thread);
      if (tick != nullptr) (*tick)();
    }
  } catch (...) {
    if (!run.failed.exchange(true)) run.failure = std::current_exception();
  }
}

/// Waits for met(). Returns false if it doesn't hold after kSpin, or now if this pool doesn't spin.
template <class Condition>
bool Pool::spin_until(const Condition& met) const {
  if (met()) return true;
  if (idle_ == Idle::sleep) return false;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (met()) return true;
      cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

void Pool::serve(std::size_t thread) {
  std::uint64_t seen = 0;
  const auto begun = [&] { return generation_ != seen; };
  while (true) {
    if (!spin_until(begun)) {
      std::unique_lock lock(mutex_);
      ++sleepers_;
      begin_.wait(lock, begun);
      --sleepers_;
    }
    seen = generation_;
    if (closing_) return;
    ++busy_;
    // A worker that wakes up late finds no run.
    if (Run* run = run_; run != nullptr) work(*run, thread, nullptr);
    if (--busy_ == 0 && caller_sleeps_) {
      const std::lock_guard lock(mutex_);
      end_.notify_one();
    }
  }
}

/// Calls the workers to a run.
void Pool::begin(Run& run) {
  run_ = &run;
  ++generation_;
  if (sleepers_ == 0) return;
  const std::lock_guard lock(mutex_);
  begin_.notify_all();
}

/// Waits until no worker is in the run, and ticks meanwhile.
void Pool::end(Run& run, const Tick& tick) {
  run_ = nullptr;
  const auto ended = [this] { return busy_ == 0; };
  if (spin_until(ended)) return;
  std::unique_lock lock(mutex_);
  caller_sleeps_ = true;
  while (!end_.wait_for(lock, std::chrono::milliseconds(2), ended)) {
    lock.unlock();
    try {
      tick();
    } catch (...) {
      if (!run.failed.exchange(true)) run.failure = std::current_exception();
    }
    lock.lock();
  }
  caller_sleeps_ = false;
}

void Pool::run(std::size_t count, Task task, Tick tick) {
  Run run{.count = count, .task = task, .failure = {}};
  const bool shared = count > 1 && !workers_.empty();
  if (shared) begin(run);
  work(run, 0, &tick);
  if (shared) end(run, tick);
  if (run.failed.load()) std::rethrow_exception(run.failure);
}

void Compute::run(std::size_t count, Pool::Task task) const {
  if (pool != nullptr) {
    pool->run(count, task, tick);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    task(i, 0);
    tick();
  }
}

std::span<std::byte> workspace_part(std::span<std::byte> workspace, std::size_t bytes, std::size_t thread) {
  const std::size_t misplaced = reinterpret_cast<std::uintptr_t>(workspace.data()) % kLine;
  const std::size_t part = round_up(bytes, kLine);
  return workspace.subspan((misplaced == 0 ? 0 : kLine - misplaced) + thread * part, part);
}

void check_workspace(const Compute& on, const char* kernel, std::size_t bytes) {
  if (on.workspace.size() < bytes) {
    throw std::invalid_argument(std::string(kernel) + " needs " + std::to_string(bytes) + " bytes of workspace for " +
                                std::to_string(on.threads()) + " threads, not " + std::to_string(on.workspace.size()));
  }
}

}  // namespace tsprun::detail::kernels
