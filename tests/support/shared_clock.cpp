// Keeps the sleepers, and moves the clock when nobody else is left.
#include "tests/support/shared_clock.h"

#include "transport/doorbell.h"
#include "transport/posix.h"

#include <algorithm>

namespace tsprun::detail::test {

namespace {
constexpr std::uint64_t kLongestNs = 100'000'000;  // of a sleep in the wait loop
}

SharedClock::SharedClock() : now_(posix::now_ns()), begin_(now_) {}

std::uint64_t SharedClock::now_ns() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

double SharedClock::seconds() const { return static_cast<double>(now_ns() - begin_) * 1e-9; }

void SharedClock::join(int ranks) {
  const std::lock_guard lock(mutex_);
  ranks_ += ranks;
}

void SharedClock::leave() {
  const std::lock_guard lock(mutex_);
  --ranks_;
  go_on();
}

/// Moves the clock and wakes those whose time has come, if all ranks are asleep.
void SharedClock::go_on() const {
  if (sleepers_.empty() || sleepers_.size() < static_cast<std::size_t>(ranks_)) return;
  const auto wakes = [](const Sleeper* one) { return one->woken || (one->bell != nullptr && one->bell->armed.load() == 0); };
  if (std::ranges::any_of(sleepers_, wakes)) return;
  now_ = std::max(now_, std::ranges::min(sleepers_, {}, &Sleeper::until)->until);
  for (Sleeper* one : sleepers_) {
    if (one->until > now_) continue;
    one->woken = true;
    if (one->bell != nullptr) one->bell->ring();
  }
  woken_.notify_all();
}

void SharedClock::sleep(SleepSet& set, std::uint64_t nanoseconds) const {
  std::unique_lock lock(mutex_);
  Sleeper me{.until = now_ + std::min(nanoseconds, kLongestNs), .bell = &set.doorbell()};
  sleepers_.push_back(&me);
  go_on();
  while (me.bell->armed.load() != 0) {
    lock.unlock();
    set.sleep(kLongestNs);
    lock.lock();
  }
  std::erase(sleepers_, &me);
}

void SharedClock::sleep_for(std::uint64_t nanoseconds) const {
  std::unique_lock lock(mutex_);
  Sleeper me{.until = now_ + nanoseconds};
  sleepers_.push_back(&me);
  go_on();
  woken_.wait(lock, [&] { return me.woken; });
  std::erase(sleepers_, &me);
}

}  // namespace tsprun::detail::test
