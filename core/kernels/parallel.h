// Resources that a kernel runs with, passed in by its caller: threads, workspace, and a callback for progress (the tick).
//
// Kernels cut their work into tasks whose bounds follow from the shapes alone; where a sum is cut, its parts are added in order.
// So neither the number of threads nor which thread runs which task changes a bit of the result.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace tsprun::detail::kernels {

template <class Signature>
class FunctionRef;

/// Non-owning reference to a callable, which must outlive it: a temporary is valid for one call only, and a stored reference
/// needs a named callable. Calling a default-constructed FunctionRef does nothing.
template <class... Arguments>
class FunctionRef<void(Arguments...)> {
 public:
  FunctionRef() = default;
  template <class Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef>)
      FunctionRef(Callable&& callable)  // NOLINT(bugprone-forwarding-reference-overload): the constraint excludes copies
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Arguments... arguments) {
          (*static_cast<std::remove_reference_t<Callable>*>(object))(std::forward<Arguments>(arguments)...);
        }) {}
  void operator()(Arguments... arguments) const {
    if (call_ != nullptr) call_(object_, std::forward<Arguments>(arguments)...);
  }

 private:
  void* object_ = nullptr;
  void (*call_)(void*, Arguments...) = nullptr;
};

/// Callback that long kernels call between tiles, on the calling thread. Ranks use it to make communication progress and to show
/// that they are alive. It may throw: the kernel then stops its threads and throws the exception, and its outputs are undefined.
using Tick = FunctionRef<void()>;

/// Ways in which threads of a pool wait for one another.
enum class Idle : std::uint8_t {
  sleep,  ///< at once: others may need the core
  spin    ///< first for as long as a few short kernels take, which saves two wake-ups, some 50 µs, of each run: every thread has
          ///< a core of its own
};

/// Pool of T threads: the caller and T − 1 workers, which sleep when there is nothing to run. Not thread-safe: one run at a time.
class Pool {
 public:
  /// Task function: gets the index of the task and of the thread that runs it, which selects the thread's part of a workspace.
  /// Thread 0 is the caller.
  using Task = FunctionRef<void(std::size_t task, std::size_t thread)>;

  /// Starts threads − 1 workers.
  explicit Pool(std::size_t threads = 1, Idle idle = Idle::sleep);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  std::size_t threads() const { return workers_.size() + 1; }

  /// Runs tasks 0 … count − 1, each once, and returns when all are done. The caller ticks after each task of its own, and every 2
  /// ms while it waits for others. If a task or a tick throws, no further task begins, and the first exception is thrown again
  /// here once the threads have stopped.
  void run(std::size_t count, Task task, Tick tick = {});

 private:
  struct Run;
  void serve(std::size_t thread);
  void begin(Run& run);
  void end(Run& run, const Tick& tick);
  template <class Condition>
  bool spin_until(const Condition& met) const;
  static void work(Run& run, std::size_t thread, const Tick* tick);

  Idle idle_;
  // A worker enters a run by adding itself to busy_ before it reads run_, and the caller leaves by clearing run_ before it reads
  // busy_: so either the worker finds no run, or the caller waits for it. Likewise for sleepers_ and generation_, and for
  // caller_sleeps_ and busy_. The mutex only orders sleeps and wake-ups.
  std::atomic<Run*> run_ = nullptr;
  std::atomic<std::uint64_t> generation_ = 0;
  std::atomic<std::size_t> busy_ = 0;
  std::atomic<std::size_t> sleepers_ = 0;
  std::atomic<bool> caller_sleeps_ = false;
  std::atomic<bool> closing_ = false;
  std::mutex mutex_;
  std::condition_variable begin_;
  std::condition_variable end_;
  std::vector<std::thread> workers_;
};

/// Mode of a kernel's write: replace the output's earlier value, or add to it.
enum class Write : std::uint8_t {
  replace,  ///< the earlier value isn't read
  add       ///< the result is added to the earlier value
};

/// Resources of one kernel call, the first argument of every kernel. Owns nothing.
struct Compute {
  Pool* pool = nullptr;            ///< threads; null: the calling thread alone
  std::span<std::byte> workspace;  ///< at least the bytes that the kernel's *_workspace() returns; none for kernels without one
  Tick tick;

  std::size_t threads() const { return pool == nullptr ? 1 : pool->threads(); }
  /// Runs tasks 0 … count − 1 on the pool, or one after another on this thread if there is none, with ticks.
  void run(std::size_t count, Pool::Task task) const;
};

/// Cache line, in bytes. Every part of a workspace begins at a multiple of it.
inline constexpr std::size_t kLine = 64;
/// Returns the smallest multiple of `multiple` that isn't below `value`.
constexpr std::size_t round_up(std::size_t value, std::size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Cuts a workspace into arrays, each aligned to a cache line. Without a workspace it only measures: its arrays are null.
class Carver {
 public:
  Carver() = default;
  explicit Carver(std::span<std::byte> space)
      : begin_(space.data() + (kLine - reinterpret_cast<std::uintptr_t>(space.data()) % kLine) % kLine) {}
  /// Returns the next `count` elements, uninitialised. The caller has checked that they fit (check_workspace()).
  template <class T>
  T* take(std::size_t count) {
    T* const first = begin_ == nullptr ? nullptr : reinterpret_cast<T*>(begin_ + taken_);
    taken_ += round_up(count * sizeof(T), kLine);
    return first;
  }
  /// Returns the bytes that were taken.
  std::size_t taken() const { return taken_; }

 private:
  std::byte* begin_ = nullptr;
  std::size_t taken_ = 0;
};

/// Returns the bytes that T(carver, sizes…) takes of a workspace.
template <class T, class... Sizes>
std::size_t carved_bytes(const Sizes&... sizes) {
  Carver measure;
  [[maybe_unused]] const T made(measure, sizes...);
  return measure.taken();
}

/// Returns the size of a workspace with `threads` parts of `bytes` each, including what aligning its begin may cost.
constexpr std::size_t workspace_bytes(std::size_t bytes, std::size_t threads) {
  return bytes == 0 ? 0 : round_up(bytes, kLine) * threads + kLine;
}
/// Returns thread `thread`'s part, of `bytes` rounded up to cache lines, of a workspace of workspace_bytes(bytes, threads) bytes.
std::span<std::byte> workspace_part(std::span<std::byte> workspace, std::size_t bytes, std::size_t thread);
/// Throws std::invalid_argument, naming the kernel, if the workspace is smaller than `bytes`.
void check_workspace(const Compute& on, const char* kernel, std::size_t bytes);

/// Returns the number of pieces of at most `size` that `total` takes.
constexpr std::size_t pieces(std::size_t total, std::size_t size) { return (total + size - 1) / size; }

/// Elements per task of elementwise kernels, counted over all its rows: some 50 µs of work.
inline constexpr std::size_t kTaskElements = 65536;
/// Returns how many rows of `width` elements make one task; at least one.
constexpr std::size_t rows_per_task(std::size_t width) {
  return width >= kTaskElements ? 1 : kTaskElements / (width == 0 ? 1 : width);
}

/// Calls body(first row, one past the last row) for all rows, in tasks of rows_per_task(width) rows.
template <class Body>
void for_rows(const Compute& on, std::size_t rows, std::size_t width, Body&& body) {
  const std::size_t step = rows_per_task(width);
  on.run(pieces(rows, step), [&](std::size_t task, std::size_t) {
    const std::size_t first = task * step;
    body(first, rows - first < step ? rows : first + step);
  });
}

/// Calls body(first column, columns) for all `width` columns of a matrix whose rows are summed. A task has so few columns that
/// their sums stay in the L1 cache while the rows are read.
template <class Body>
void for_columns(const Compute& on, std::size_t width, Body&& body) {
  constexpr std::size_t kTaskColumns = 256;
  on.run(pieces(width, kTaskColumns), [&](std::size_t task, std::size_t) {
    const std::size_t first = task * kTaskColumns;
    body(first, width - first < kTaskColumns ? width - first : kTaskColumns);
  });
}

}  // namespace tsprun::detail::kernels
