// Threads that take tasks from a common counter. They sleep between runs: spinning would slow other ranks where ranks share
// cores.
#include "core/kernels/parallel.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

namespace tsprun::detail::kernels {

struct Pool::Run {
  std::size_t count;
  Task task;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;  // written by the thread that set `failed`
};

Pool::Pool(std::size_t threads) {
  workers_.reserve(threads > 0 ? threads - 1 : 0);
  for (std::size_t thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { serve(thread); });
}

Pool::~Pool() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
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

void Pool::serve(std::size_t thread) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    begin_.wait(lock, [&] { return closing_ || (run_ != nullptr && generation_ != seen); });
    if (closing_) return;
    seen = generation_;
    Run& run = *run_;
    ++busy_;
    lock.unlock();
    work(run, thread, nullptr);
    lock.lock();
    if (--busy_ == 0) end_.notify_one();
  }
}

void Pool::run(std::size_t count, Task task, Tick tick) {
  Run run{.count = count, .task = task, .failure = {}};
  const bool shared = count > 1 && !workers_.empty();
  if (shared) {
    {
      const std::lock_guard lock(mutex_);
      run_ = &run;
      ++generation_;
    }
    begin_.notify_all();
  }
  work(run, 0, &tick);
  if (shared) {
    std::unique_lock lock(mutex_);
    run_ = nullptr;  // a worker that wakes up late has nothing left to do
    while (busy_ > 0) {
      if (end_.wait_for(lock, std::chrono::milliseconds(2), [&] { return busy_ == 0; })) break;
      lock.unlock();
      try {
        tick();
      } catch (...) {
        if (!run.failed.exchange(true)) run.failure = std::current_exception();
      }
      lock.lock();
    }
  }
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
