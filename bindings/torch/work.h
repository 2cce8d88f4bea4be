// Work objects of torch: an operation that was handed to Progress, its future, and its failure as an exception of torch.
#pragma once

#include "process_group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tsprun::torch_binding {

/// Pauses between looks at something that others bring about: short at first, so that a quick answer is found at once.
class Pause {
 public:
  void sleep() {
    std::this_thread::sleep_for(next_);
    next_ = std::min(2 * next_, kLongestPause);
  }

 private:
  static constexpr std::chrono::milliseconds kLongestPause{32};
  std::chrono::milliseconds next_{1};
};

/// Longest limit of a wait: the end of a longer one could overflow the clock's nanoseconds.
inline constexpr std::chrono::hours kLongest{24 * 365};

/// Rethrows a failure as what torch expects, a std::runtime_error with the verdict's text.
inline std::exception_ptr as_torch_error(const std::string& call, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    const bool by_program = error.cause() == Cause::failed && error.rank() >= 0;
    const std::string who = by_program ? "the program of rank " + std::to_string(error.rank()) + " ended the job: " : "";
    return std::make_exception_ptr(
        std::runtime_error(call + ": " + std::string(name(error.cause())) + ": " + who + error.what()));
  } catch (...) {
    return std::current_exception();
  }
}

/// Returns a list for people: "rank 3", "ranks 1, 2".
inline std::string ranks(const std::vector<int>& list) {
  std::string text = list.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < list.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(list[i]);
  return text;
}

/// One operation, as torch waits for it; used by any thread. Its future is made when somebody asks for it: without one there are
/// no callbacks, and the operation's end is told by whichever thread finds it.
class TsprunWork : public c10d::Work {
 public:
  TsprunWork(std::shared_ptr<Member> member, int rank, c10d::OpType type, const std::string& title,
             const c10::optional<Tensors>& inputs, Tensors outputs, std::chrono::milliseconds timeout)
      : Work(rank, type, title.c_str(), inputs),
        call_(title),
        outputs_(std::move(outputs)),
        timeout_(timeout),
        member_(std::move(member)) {}

  void looked_after(Posted posted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    posted_.emplace(std::move(posted));
  }
  /// Called at the end of the operation; doesn't wait for callbacks.
  void over(const std::exception_ptr& failure) {
    finish(failure ? as_torch_error(call_, failure) : nullptr);
    bool at_once = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!future_ || future_->completed()) return;  // nobody has asked yet, or getFuture() has told of the end
      telling_ = true;
      at_once = asked_inside_;
    }
    member_->callbacks().run([work = c10::intrusive_ptr<TsprunWork>::reclaim_copy(this)] { work->tell(); }, at_once);
  }

  /// Waits for the callbacks of the future, too, as gloo does; but not in one of them.
  bool wait(std::chrono::milliseconds timeout) override {
    const std::chrono::milliseconds limit = timeout.count() > 0 ? timeout : timeout_;
    bool in_time = false;
    try {
      in_time = posted_->wait(limit);
    } catch (...) {
      std::rethrow_exception(as_torch_error(call_, std::current_exception()));
    }
    if (!in_time) {
      const std::vector<int> missing = posted_->missing();
      TORCH_CHECK(false, call_, ": Timed out after ", limit.count(),
                  " ms: ", missing.empty() ? "it hasn't come to an end" : "it waits for " + ranks(missing),
                  missing.empty() ? "" : " of the job, still computing, or elsewhere");
    }
    std::unique_lock<std::mutex> lock(mutex_);
    const bool told = cv_.wait_for(lock, std::min<std::chrono::milliseconds>(limit, kLongest),
                                   [&] { return !telling_ || teller_ == std::this_thread::get_id(); });
    TORCH_CHECK(told, call_, ": Timed out after ", limit.count(), " ms: it is over, but a callback of its future isn't");
    if (exception_) std::rethrow_exception(exception_);  // its results couldn't be copied out
    return true;
  }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    asked_inside_ = asked_inside_ || CallbackThreads::inside();
    if (!future_) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      if (completed_) complete_future();
    }
    return future_;
  }
  void abort() override { TORCH_CHECK(false, "tsprun: an operation that has begun can't be taken back"); }
  int sourceRank() const override { return source_; }
  void set_source(int rank) { source_ = rank; }

 private:
  void complete_future() {
    if (exception_) future_->setErrorIfNeeded(exception_);
    else future_->markCompleted(c10::IValue(outputs_));
  }
  /// Runs the callbacks.
  void tell() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      teller_ = std::this_thread::get_id();
    }
    complete_future();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      telling_ = false;
    }
    cv_.notify_all();
  }

  std::string call_;
  Tensors outputs_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Member> member_;  // before posted_, which must not outlive it
  std::optional<Posted> posted_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_, like what follows
  bool asked_inside_ = false;                       // for the future, by a callback, which may wait for it
  bool telling_ = false;                            // callbacks are about to run, or run
  std::thread::id teller_;
  int source_ = -1;
};

/// Several operations as one, which is over when all are; used by any thread.
class WorkOfSeveral : public c10d::Work {
 public:
  WorkOfSeveral(int rank, std::vector<WorkPtr> parts) : Work(rank, c10d::OpType::UNKNOWN), parts_(std::move(parts)) {}

  bool isCompleted() override {
    return std::ranges::all_of(parts_, [](const WorkPtr& part) { return part->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::ranges::all_of(parts_, [](const WorkPtr& part) { return part->isSuccess(); });
  }
  std::exception_ptr exception() const override {
    for (const WorkPtr& part : parts_) {
      if (std::exception_ptr failure = part->exception()) return failure;
    }
    return nullptr;
  }
  /// Waits for all of them, at most for `timeout` in all; without one, each has the group's.
  bool wait(std::chrono::milliseconds timeout) override {
    using std::chrono::steady_clock;
    const steady_clock::time_point end = steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, kLongest);
    for (const WorkPtr& part : parts_) {
      const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(end - steady_clock::now());
      part->wait(timeout.count() > 0 ? std::max(rest, std::chrono::milliseconds(1)) : kNoTimeout);
    }
    return true;
  }
  /// Returns the results of all, in the order in which they were posted.
  std::vector<at::Tensor> result() override {
    Tensors all;
    for (const WorkPtr& part : parts_) {
      const Tensors each = part->result();
      all.insert(all.end(), each.begin(), each.end());
    }
    return all;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const c10::TypePtr type = c10::ListType::create(c10::TensorType::get());
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(c10::FutureType::create(type));
    for (const WorkPtr& part : parts_) futures.push_back(part->getFuture());
    return c10::collectAll(std::move(futures))
        ->then(
            [self = c10::intrusive_ptr<WorkOfSeveral>::reclaim_copy(this)](c10::ivalue::Future& /*all*/) -> c10::IValue {
              if (const std::exception_ptr failure = self->exception()) std::rethrow_exception(failure);
              return self->result();
            },
            type);
  }

 private:
  std::vector<WorkPtr> parts_;
};

}  // namespace tsprun::torch_binding
