// Threads that take turns in a rank's engine, and the one that drives it while no other does.
//
// One mutex guards the engine and all state here. Whoever wants it raises `wanted`, which makes the thread that holds it in
// Engine::drive() step aside until all who want it have had it: so no thread starves, though a mutex may be unfair. At most one
// thread is the driver, as a rule a waiting one until its wait is over; others sleep on `changed`, under a mutex of its own,
// which is taken last. While a `done` function is called, no lock is held and the caller isn't the driver: so one that takes long
// stops no other thread.
#include "tsprun/progress.h"

#include "core/context.h"
#include "core/streams/wait_state.h"
#include "transport/cause.h"
#include "transport/log.h"
#include "transport/posix.h"
#include "transport/signals_blocked.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <sched.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace tsprun {

using namespace detail;

namespace detail {

namespace {

/// Time between two looks of the progress thread whether an operation is pending, while operations are posted often. A thread
/// that sleeps on a condition variable would have to be woken by every call, which costs as much as a small operation.
constexpr std::chrono::microseconds kNap{200};
/// Time without operations after which the thread sleeps until it is woken.
constexpr std::uint64_t kQuietNs = 20'000'000;
/// Time between two signs of life while nothing happens.
constexpr std::chrono::milliseconds kSign{100};
/// Limits of this length and longer ones count as none: in nanoseconds they could overflow.
constexpr std::chrono::milliseconds kLongestLimit = std::chrono::hours(24 * 365);

}  // namespace

/// An operation that was handed over. Guarded by ProgressState::mutex, but for `over`.
struct PostedState {
  PostedState(std::shared_ptr<ProgressState> progress, Progress::Done when_over)
      : owner(std::move(progress)), done(std::move(when_over)) {}
  std::shared_ptr<ProgressState> owner;
  Work work;
  Progress::Done done;
  std::exception_ptr failure;
  std::uint32_t waiters = 0;
  std::uint64_t ends_ns = kNoDeadline;  // when it must be over, as long as nobody has waited for it
  std::uint64_t limit_ns = 0;           // counted from its post
  bool is_late = false;                 // ends_ns was over once: the rank may have been stopped, so there is a little more time
  std::atomic<bool> over{false};
};

struct ProgressState {
  explicit ProgressState(Context& of) : context(&of), engine(&engine_of(of)) {}

  /// Holds the mutex, which it gets soon: the thread that drives is woken and steps aside.
  class Turn {
   public:
    explicit Turn(ProgressState& state) : lock_(state.mutex, std::defer_lock) {
      state.check_process();
      state.check_thread();
      state.enter(lock_);
    }
    std::unique_lock<std::mutex>& lock() { return lock_; }

   private:
    std::unique_lock<std::mutex> lock_;
  };

  void check_process() const {
    if (::getpid() == process) return;
    throw Error(
        Cause::refused,
        "this process was forked from a rank's: only the rank itself can communicate (a worker that loads data must not)");
  }

  /// Throws Error(refused) in a thread that has the engine already, which would wait for itself.
  void check_thread() const {
    if (calling.load(std::memory_order_relaxed) != std::this_thread::get_id()) return;
    throw Error(
        Cause::refused,
        "Progress: within a call of use() or post(), the thread has the context and would wait for itself; it may use what the "
        "call is given, and nothing of Progress");
  }
  /// Gives the caller's function the context. Precondition: the thread has its Turn.
  template <class Call>
  auto call(const Call& function) {
    struct Mark {
      std::atomic<std::thread::id>& calling;
      explicit Mark(std::atomic<std::thread::id>& mark) : calling(mark) {
        calling.store(std::this_thread::get_id(), std::memory_order_relaxed);
      }
      Mark(const Mark&) = delete;
      Mark& operator=(const Mark&) = delete;
      ~Mark() { calling.store(std::thread::id(), std::memory_order_relaxed); }
    };
    const Mark mark(calling);
    return function(*context);
  }

  void enter(std::unique_lock<std::mutex>& lock);
  void announce();
  void await_change(std::unique_lock<std::mutex>& lock, const PostedState& posted);
  std::exception_ptr drive(WaitState& state, std::uint64_t number, std::uint64_t deadline_ns);
  std::exception_ptr tick();
  std::exception_ptr end_for(const PostedState& late);
  PostedState* first_to_end() const;
  std::uint64_t limit() const;
  std::exception_ptr end_late();
  void let_others_in(std::unique_lock<std::mutex>& lock);
  void collect(std::unique_lock<std::mutex>& lock, const std::exception_ptr& failure, bool* driver = nullptr);
  void step_down(bool& driver);
  bool is_pending(const PostedState& posted) const;
  bool awaited() const;
  bool wait(PostedState& posted, std::uint64_t deadline_ns);
  void attend();
  void stop();

  Context* context;
  Engine* engine;
  const pid_t process = ::getpid();
  std::mutex mutex;
  std::mutex bell;
  std::condition_variable changed;                   // an operation is over, or nobody drives any more
  std::uint64_t changes = 0;                         // guarded by `bell`
  std::condition_variable alarm;                     // wakes the progress thread while it rests
  std::atomic<std::thread::id> calling{};            // the thread whose function has the context; none: no thread's
  std::atomic<std::uint32_t> wanted{0};              // threads that want the mutex
  std::deque<std::shared_ptr<PostedState>> pending;  // in the order of their posts
  bool driving = false;
  bool resting = false;
  bool stopping = false;
  std::uint64_t last_post_ns = 0;
  std::thread thread;
};

/// Locks the mutex soon: the thread that drives is woken and steps aside.
void ProgressState::enter(std::unique_lock<std::mutex>& lock) {
  if (lock.try_lock()) return;
  wanted.fetch_add(1);
  engine->wake();
  lock.lock();
  wanted.fetch_sub(1);
}

void ProgressState::announce() {
  {
    const std::lock_guard<std::mutex> ringing(bell);
    ++changes;
  }
  changed.notify_all();
}

/// Waits, without the lock, until anything changes; some milliseconds at most, so that deadlines are kept.
void ProgressState::await_change(std::unique_lock<std::mutex>& lock, const PostedState& posted) {
  std::unique_lock<std::mutex> listening(bell);
  const std::uint64_t seen = changes;
  lock.unlock();
  changed.wait_for(listening, std::chrono::milliseconds(10),
                   [&] { return changes != seen || posted.over.load(std::memory_order_acquire); });
  listening.unlock();
  enter(lock);
}

/// Drives the engine once; returns the failure of the job if it fails. Precondition: the caller holds the lock and is the driver.
std::exception_ptr ProgressState::drive(WaitState& state, std::uint64_t number, std::uint64_t deadline_ns) {
  try {
    engine->drive(state, number, wanted, deadline_ns);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

/// Gives a sign of life; returns the failure of the job if it has failed. (In attend() itself, clang 14 handed the handler a time
/// for the exception under ThreadSanitizer.) Precondition: the caller holds the lock, and nobody drives.
std::exception_ptr ProgressState::tick() {
  try {
    engine->tick();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

/// Ends the job because of an operation that takes too long; returns the job's failure. Precondition: the caller holds the lock.
std::exception_ptr ProgressState::end_for(const PostedState& late) {
  const Operation* const operation = engine->pending(late.work);
  const std::string what = operation == nullptr ? std::string("an operation")
                                                : fmt::format("{} (operation {} of its group)", name(operation->info().op),
                                                              operation->info().group_sequence);
  const std::vector<int> missing = engine->missing(late.work);
  const std::string whom = missing.empty() ? ""
                                           : fmt::format(": it waits for rank{} {}, still computing, or elsewhere",
                                                         missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
  try {
    engine->break_down(Error(Cause::stalled,
                             fmt::format("rank {}: {} isn't over within {:g} s of its call{}", engine->world_rank(), what,
                                         static_cast<double>(late.limit_ns) * 1e-9, whom),
                             missing.empty() ? engine->world_rank() : missing.front()));
  } catch (...) {
    return std::current_exception();
  }
}

/// Returns the pending operation whose time is up first; null: none has a limit.
PostedState* ProgressState::first_to_end() const {
  const auto first = std::ranges::min_element(pending, {}, [](const auto& each) { return each->ends_ns; });
  return first == pending.end() || (*first)->ends_ns == kNoDeadline ? nullptr : first->get();
}

/// Returns when the time of a pending operation is up first; kNoDeadline: none has a limit.
std::uint64_t ProgressState::limit() const {
  const PostedState* const first = first_to_end();
  return first == nullptr ? kNoDeadline : first->ends_ns;
}

/// Ends the job if the time of a pending operation is up, and was so before it got a tenth more; returns the job's failure then.
/// Precondition: the caller holds the lock.
std::exception_ptr ProgressState::end_late() {
  constexpr std::uint64_t kLongestGrace_ns = 1'000'000'000;
  const std::uint64_t now = posix::now_ns();
  PostedState* const late = first_to_end();
  if (late == nullptr || now < late->ends_ns || engine->is_complete(late->work)) return nullptr;
  if (late->is_late) return end_for(*late);
  late->is_late = true;
  late->ends_ns = now + std::min(late->limit_ns / 10, kLongestGrace_ns);
  return nullptr;
}

void ProgressState::let_others_in(std::unique_lock<std::mutex>& lock) {
  if (wanted.load() == 0) return;
  lock.unlock();
  while (wanted.load() != 0) ::sched_yield();
  enter(lock);
}

/// Ends the operations that are complete or, after a failure, all; calls their `done` without the lock. Then the caller isn't the
/// driver any more; `driver` says whether it was.
void ProgressState::collect(std::unique_lock<std::mutex>& lock, const std::exception_ptr& failure, bool* driver) {
  std::vector<std::shared_ptr<PostedState>> ended;
  const auto is_over = [&](const std::shared_ptr<PostedState>& posted) {
    if (!failure && !engine->is_complete(posted->work)) return false;
    if (!failure) engine->settle(posted->work);
    posted->failure = failure;
    ended.push_back(posted);
    return true;
  };
  std::erase_if(pending, is_over);
  if (!ended.empty()) {
    if (driver != nullptr) step_down(*driver);
    lock.unlock();
    for (const std::shared_ptr<PostedState>& posted : ended) {
      if (posted->done) posted->done(posted->failure);
      posted->done = nullptr;
      posted->over.store(true, std::memory_order_release);
    }
    announce();
    enter(lock);
  }
}

/// Gives up the role of the driver, to another thread that waits if there is one, else to the progress thread.
void ProgressState::step_down(bool& driver) {
  driver = driving = false;
  if (awaited()) announce();
  else if (resting && !pending.empty()) alarm.notify_all();
}

bool ProgressState::is_pending(const PostedState& posted) const {
  return std::ranges::any_of(pending, [&](const auto& each) { return each.get() == &posted; });
}

/// Returns true if a thread waits for a pending operation, and so drives or is about to.
bool ProgressState::awaited() const {
  return std::ranges::any_of(pending, [](const auto& each) { return each->waiters > 0; });
}

bool ProgressState::wait(PostedState& posted, std::uint64_t deadline_ns) {
  if (!posted.over.load(std::memory_order_acquire)) {
    Turn turn(*this);
    WaitState state(Engine::stream_of(posted.work));
    bool driver = false;
    posted.ends_ns = kNoDeadline;
    ++posted.waiters;
    while (!posted.over.load(std::memory_order_acquire) && posix::now_ns() < deadline_ns) {
      const bool queued = is_pending(posted);  // no more while another thread is in its `done`
      if (queued && !driving) driver = driving = true;
      if (driver && queued) {
        std::exception_ptr failure = drive(state, Engine::number_of(posted.work), std::min(deadline_ns, limit()));
        if (!failure) failure = end_late();
        collect(turn.lock(), failure, &driver);
        let_others_in(turn.lock());
      } else {
        if (driver) step_down(driver);
        await_change(turn.lock(), posted);
      }
    }
    --posted.waiters;
    if (driver) step_down(driver);
  }
  if (!posted.over.load(std::memory_order_acquire)) return false;
  if (posted.failure) std::rethrow_exception(posted.failure);
  return true;
}

/// Runs in the progress thread.
void ProgressState::attend() {
  std::unique_lock<std::mutex> lock(mutex);
  std::uint64_t last_sign_ns = 0;
  while (!stopping) {
    if (const std::exception_ptr failure = end_late()) collect(lock, failure);
    if (!driving && !pending.empty() && !awaited()) {
      WaitState state(Stream::control);
      state.blocked = false;
      driving = true;
      const std::exception_ptr failure = drive(state, 0, limit());
      driving = false;
      collect(lock, failure);
      let_others_in(lock);
      continue;
    }
    const std::uint64_t now = posix::now_ns();
    if (!driving && !awaited() && now - last_sign_ns >= std::uint64_t{std::chrono::nanoseconds(kSign).count()}) {
      last_sign_ns = now;
      if (const std::exception_ptr failure = tick()) collect(lock, failure);
    }
    if (now - last_post_ns > kQuietNs) {
      resting = true;
      alarm.wait_for(lock, kSign);
      resting = false;
    } else {
      lock.unlock();
      do std::this_thread::sleep_for(kNap);
      while (!lock.try_lock());
    }
  }
}

void ProgressState::stop() {
  {
    Turn turn(*this);
    stopping = true;
    alarm.notify_all();
  }
  thread.join();
  Turn turn(*this);
  if (!pending.empty()) engine->give_up();
  collect(turn.lock(), std::make_exception_ptr(Error(Cause::interrupted, "the rank left the job with this operation pending")));
}

}  // namespace detail

bool Posted::over() const { return state_->over.load(std::memory_order_acquire); }

bool Posted::wait(std::chrono::milliseconds at_most) {
  const bool limited = at_most.count() > 0 && at_most < kLongestLimit;
  return state_->owner->wait(
      *state_, limited ? posix::now_ns() + static_cast<std::uint64_t>(std::chrono::nanoseconds(at_most).count()) : kNoDeadline);
}

std::vector<int> Posted::missing() const {
  const ProgressState::Turn turn(*state_->owner);
  return state_->over.load(std::memory_order_acquire) ? std::vector<int>() : state_->owner->engine->missing(state_->work);
}

Progress::Progress(Context& context) : state_(std::make_shared<ProgressState>(context)) {
  const SignalsBlocked blocked;
  state_->thread = std::thread([state = state_.get()] { state->attend(); });
}

Progress::~Progress() {
  if (::getpid() == state_->process) {
    state_->stop();
  } else {
    // The thread isn't in this process, so it can't be ended here.
    new (std::nothrow) std::shared_ptr<ProgressState>(std::move(state_));
  }
}

bool Progress::drain() {
  const std::uint64_t deadline_ns = posix::now_ns() + state_->engine->options().timeout_ns;
  while (true) {
    std::shared_ptr<PostedState> first;
    {
      const ProgressState::Turn turn(*state_);
      if (state_->pending.empty()) return true;
      first = state_->pending.front();
    }
    try {
      if (state_->wait(*first, deadline_ns)) continue;
      const ProgressState::Turn turn(*state_);
      const std::vector<int> missing = state_->engine->missing(first->work);
      logger().warn(
          "rank {} has waited {:g} s (--timeout, TSP_TIMEOUT) for an operation to be complete{}", state_->engine->world_rank(),
          static_cast<double>(state_->engine->options().timeout_ns) * 1e-9,
          missing.empty() ? "" : fmt::format(": rank{} {} missing", missing.size() == 1 ? "" : "s", fmt::join(missing, ", ")));
      return false;
    } catch (...) {
      // Whoever asks for the operation is told.
    }
  }
}

void Progress::use(const std::function<void(Context&)>& call) {
  const ProgressState::Turn turn(*state_);
  state_->call(call);
}

Posted Progress::post(const std::function<Work(Context&)>& call, Done done, std::chrono::milliseconds at_most) {
  auto posted = std::make_shared<PostedState>(state_, std::move(done));
  ProgressState::Turn turn(*state_);
  posted->work = state_->call(call);
  state_->last_post_ns = posix::now_ns();
  if (at_most.count() > 0 && at_most < kLongestLimit) {
    posted->limit_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(at_most).count());
    posted->ends_ns = state_->last_post_ns + posted->limit_ns;
  }
  state_->pending.push_back(posted);
  if (state_->engine->is_complete(posted->work)) {
    state_->collect(turn.lock(), nullptr);
  } else if (state_->resting) {
    state_->alarm.notify_all();
  }
  return Posted(std::move(posted));
}

}  // namespace tsprun
