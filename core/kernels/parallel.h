// What a kernel runs on: threads, workspace and a sign of life, handed in by the caller.
//
// Kernels cut their outputs into tasks whose bounds follow from the shapes alone, and never cut a sum; so which thread runs which
// task, and how many threads there are, can't change a bit of the result.
#pragma once

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

namespace tsprun::kernels {

template <class Signature>
class FunctionRef;

/// A borrowed callable, which must outlive the reference: a temporary is good for one call, a stored reference needs a named one.
/// Without a callable a call does nothing.
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

/// A sign of life, called between the panels of long kernels on the calling thread. It may throw: the kernel then ends early,
/// with its outputs undefined, after its threads have stopped.
using Tick = FunctionRef<void()>;

/// T threads: the caller and T − 1 that sleep between runs. One run at a time, always from one thread at a time.
class Pool {
 public:
  /// A task: its index and that of the thread that runs it, for its part of the workspace; thread 0 is the caller.
  using Task = FunctionRef<void(std::size_t task, std::size_t thread)>;

  explicit Pool(std::size_t threads = 1);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  std::size_t threads() const { return workers_.size() + 1; }

  /// Runs tasks 0 … count − 1, each once, and returns when all are done. The caller ticks after each task of its own, and while
  /// it waits for others. The first exception of a task or tick is thrown after the threads have stopped.
  void run(std::size_t count, Task task, Tick tick = {});

 private:
  struct Run;
  void serve(std::size_t thread);
  static void work(Run& run, std::size_t thread, const Tick* tick);

  std::mutex mutex_;
  std::condition_variable begin_;
  std::condition_variable end_;
  Run* run_ = nullptr;
  std::uint64_t generation_ = 0;
  std::size_t busy_ = 0;
  bool closing_ = false;
  std::vector<std::thread> workers_;
};

/// What becomes of an output's earlier value.
enum class Write : std::uint8_t {
  replace,  ///< it isn't read
  add       ///< the result is added to it
};

/// What every kernel takes first.
struct Compute {
  Pool* pool = nullptr;            ///< null: the calling thread alone
  std::span<std::byte> workspace;  ///< as many bytes as the kernel's *_workspace() says, for pool->threads() threads
  Tick tick;

  std::size_t threads() const { return pool == nullptr ? 1 : pool->threads(); }
  /// Runs tasks on the pool, or one after another here, with ticks.
  void run(std::size_t count, Pool::Task task) const;
};

/// Every part of a workspace begins on a line of its own.
inline constexpr std::size_t kLine = 64;
constexpr std::size_t round_up(std::size_t value, std::size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Cuts a workspace into arrays, each aligned to a line.
class Carver {
 public:
  explicit Carver(std::span<std::byte> space) : space_(space) {}
  /// The next `count` elements. The caller has checked that they are there (check_workspace).
  template <class T>
  T* take(std::size_t count) {
    const std::size_t misplaced = reinterpret_cast<std::uintptr_t>(space_.data()) % kLine;
    space_ = space_.subspan(misplaced == 0 ? 0 : kLine - misplaced);
    T* first = reinterpret_cast<T*>(space_.data());
    space_ = space_.subspan(round_up(count * sizeof(T), kLine));
    return first;
  }

 private:
  std::span<std::byte> space_;
};

/// Bytes for `threads` parts of `bytes` each, wherever the workspace begins.
constexpr std::size_t workspace_bytes(std::size_t bytes, std::size_t threads) {
  return bytes == 0 ? 0 : round_up(bytes, kLine) * threads + kLine;
}
/// A thread's part of `bytes`, of a workspace of workspace_bytes(bytes, threads).
std::span<std::byte> workspace_part(std::span<std::byte> workspace, std::size_t bytes, std::size_t thread);
/// Throws std::invalid_argument naming the kernel if the workspace is smaller than `bytes`.
void check_workspace(const Compute& on, const char* kernel, std::size_t bytes);

/// For elementwise kernels: elements (of all rows together) worth a task of their own, some 50 µs of work.
inline constexpr std::size_t kTaskElements = 65536;
/// How many rows of `width` elements make a task, at least one.
constexpr std::size_t rows_per_task(std::size_t width) {
  return width >= kTaskElements ? 1 : kTaskElements / (width == 0 ? 1 : width);
}

/// Runs body(first row, one past the last row) over all rows in tasks of rows_per_task(width).
template <class Body>
void for_rows(const Compute& on, std::size_t rows, std::size_t width, Body&& body) {
  const std::size_t step = rows_per_task(width);
  on.run((rows + step - 1) / step, [&](std::size_t task, std::size_t) {
    const std::size_t first = task * step;
    body(first, rows - first < step ? rows : first + step);
  });
}

}  // namespace tsprun::kernels
