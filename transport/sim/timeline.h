// Virtual time: a queue of events in order of time, and the clock that they move. Nothing here reads a real clock.
#pragma once

#include "transport/clock.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <queue>
#include <vector>

namespace tsprun::detail::sim {

/// Receives events of a Timeline.
class Handler {
 public:
  Handler() = default;
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;
  virtual ~Handler() = default;
  /// Handles the event `what`, a number that the one who added it chose. The timeline's clock shows the event's time.
  virtual void happen(std::uint64_t what) = 0;
};

/// Events to come. Events of the same time happen in the order in which they were added, so two runs are alike to the bit.
class Timeline final : public Clock {
 public:
  std::uint64_t now_ns() const override { return static_cast<std::uint64_t>(std::llround(now_ * 1e9)); }
  /// Returns the seconds since the beginning.
  double now() const { return now_; }
  /// Adds an event `seconds` ≥ 0 from now. `handler` is borrowed until then.
  void add(double seconds, Handler& handler, std::uint64_t what) { add_at(now_ + seconds, handler, what); }
  /// Adds an event at a time that isn't before now, in seconds since the beginning.
  void add_at(double at, Handler& handler, std::uint64_t what) {
    const Event event{.at = at, .number = ++added_, .handler = &handler, .what = what};
    if (event.at == now_) soon_.push(event);
    else later_.push(event);
  }
  /// Moves the clock to the next event and lets it happen; returns false if there is none.
  bool step() {
    if (soon_.empty() && later_.empty()) return false;
    // Later events whose time has come were added before the clock came here, so before those that happen soon.
    const bool is_later = soon_.empty() || (!later_.empty() && later_.top().at == now_);
    const Event next = is_later ? later_.top() : soon_.front();
    if (is_later) later_.pop();
    else soon_.pop();
    now_ = next.at;
    next.handler->happen(next.what);
    return true;
  }
  /// Returns the number of events so far.
  std::uint64_t added() const { return added_; }

 private:
  struct Event {
    double at;
    std::uint64_t number;
    Handler* handler;
    std::uint64_t what;
    /// Time and number in one: nonnegative doubles are ordered as their bits are.
    __uint128_t key() const { return (static_cast<__uint128_t>(std::bit_cast<std::uint64_t>(at)) << 64) | number; }
    bool operator<(const Event& other) const { return key() > other.key(); }
  };
  std::queue<Event> soon_;            ///< of the time that the clock shows
  std::priority_queue<Event> later_;  ///< of later times
  double now_ = 0;
  std::uint64_t added_ = 0;
};

}  // namespace tsprun::detail::sim
