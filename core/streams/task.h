// Coroutines that the engine steps. A task runs until it waits for a condition that isn't true yet; at every poll() it tries the
// condition again, and goes on when it has become true:
//
//   co_await offer.drained();                 // one condition
//   co_await all_of(sends, receives, copy);   // several, which make progress side by side
//   co_await ring_gather(me, …);              // another task, from its beginning to its end
//
// Nothing but co_await waits, and a task is resumed by poll() alone, on the rank's thread. A task that is destroyed while it
// waits destroys its local variables, as if it had returned there.
#pragma once

#include "core/streams/frame_pool.h"

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tsprun::detail {

/// A condition that a task can wait for. poll() does what it can without waiting and returns true when nothing is left to do; it
/// isn't called again after that. It may throw, which ends the task: a task can't catch it.
template <class T>
concept Condition = requires(T& condition) {
  { condition.poll() } -> std::same_as<bool>;
};

/// A condition made of a function; not of a coroutine's own lambda, as g++ 12 warns of what its frame then holds.
template <class F>
struct Until {
  F poll;
};
template <class F>
Until(F) -> Until<F>;

/// Waiting for it gives others a turn.
struct NextTurn {};

/// A coroutine. The frame comes from the pool that `frames()` of its first parameter returns. It starts at the first poll().
class [[nodiscard]] Task {
 public:
  class promise_type;

  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (frame_) frame_.destroy();
  }

  /// Goes on as far as it can; returns true when the coroutine has ended. Throws what the coroutine or its condition throws. Must
  /// not be called again after that.
  bool poll();

 private:
  explicit Task(std::coroutine_handle<promise_type> frame) : frame_(frame) {}
  std::coroutine_handle<promise_type> frame_;
};

/// The part of a task's frame that the language asks for.
class Task::promise_type {
 public:
  template <class First, class... Others>
  static void* operator new(std::size_t bytes, First& first, Others&...) {
    return first.frames().take(bytes);
  }
  static void operator delete(void* frame) { FramePool::give_back(frame); }

  Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
  std::suspend_always initial_suspend() noexcept { return {}; }
  std::suspend_always final_suspend() noexcept { return {}; }
  void return_void() {}
  void unhandled_exception() { error_ = std::current_exception(); }

  template <Condition C>
  struct Awaiter {
    C& condition;  // one without a name lives in the frame until the task goes on
    bool await_ready() { return condition.poll(); }
    void await_suspend(std::coroutine_handle<promise_type> frame) noexcept {
      frame.promise().condition_ = &condition;
      frame.promise().poll_ = [](void* waited_for) { return static_cast<C*>(waited_for)->poll(); };
    }
    void await_resume() noexcept {}
  };
  /// Gives others a turn: the next poll() goes on.
  struct NextTurnAwaiter {
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<promise_type>) const noexcept {}
    void await_resume() const noexcept {}
  };
  NextTurnAwaiter await_transform(NextTurn) { return {}; }
  template <class C>
  requires Condition<std::remove_reference_t<C>> Awaiter<std::remove_reference_t<C>> await_transform(C&& condition) {
    return {condition};
  }

 private:
  friend class Task;
  void* condition_ = nullptr;  // what the task waits for
  bool (*poll_)(void*) = nullptr;
  std::exception_ptr error_;
};

inline bool Task::poll() {
  promise_type& promise = frame_.promise();
  if (promise.poll_ != nullptr && !promise.poll_(promise.condition_)) return false;
  promise.poll_ = nullptr;
  frame_.resume();
  if (!frame_.done()) return false;
  if (promise.error_) std::rethrow_exception(std::exchange(promise.error_, nullptr));
  return true;
}

/// Several conditions, of which each is polled, in this order, until it is true.
template <Condition... Parts>
class AllOf {
 public:
  explicit AllOf(Parts&... parts) : parts_(parts...) {}
  bool poll() { return poll_each(std::index_sequence_for<Parts...>()); }

 private:
  template <std::size_t... I>
  bool poll_each(std::index_sequence<I...>) {
    ((done_[I] = done_[I] || std::get<I>(parts_).poll()), ...);
    return (done_[I] && ...);
  }
  std::tuple<Parts&...> parts_;
  bool done_[sizeof...(Parts)] = {};
};

/// Returns the condition that all of these, which must outlive it, are true.
template <Condition... Parts>
AllOf<Parts...> all_of(Parts&... parts) {
  return AllOf<Parts...>(parts...);
}

}  // namespace tsprun::detail
