// Events happen in the order of their times, and those of one time in the order in which they were added.
#include "transport/sim/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

namespace tsprun::detail::sim::timeline_test {
namespace {

/// Adds events now and later while events happen, and notes which happened when.
class Recorder final : public Handler {
 public:
  explicit Recorder(unsigned seed) : random_(seed) {}
  void add(double seconds) {
    due_.emplace_back(timeline_.now() + seconds, due_.size());
    timeline_.add(seconds, *this, due_.back().second);
  }
  void happen(std::uint64_t what) override {
    happened_.emplace_back(timeline_.now(), what);
    constexpr double kDelays[] = {0, 0, 1, 1, 2, 1e-30};  // the last is lost beside a clock that has moved
    for (std::size_t count = random_() % 3; count > 0 && due_.size() < 2000; --count)
      add(kDelays[random_() % std::size(kDelays)]);
  }
  void expect_order() {
    while (timeline_.step()) {
    }
    EXPECT_EQ(timeline_.added(), due_.size());
    std::ranges::sort(due_);
    EXPECT_EQ(happened_, due_);
  }

 private:
  using Event = std::pair<double, std::uint64_t>;  // time, number
  Timeline timeline_;
  std::mt19937 random_;
  std::vector<Event> due_;
  std::vector<Event> happened_;
};

TEST(Timeline, LetsEventsHappenByTimeAndThenAsTheyWereAdded) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    Recorder recorder(seed);
    for (const double at : {1., 0., 1., 3., 0., 2., 1.}) recorder.add(at);
    recorder.expect_order();
  }
}

}  // namespace
}  // namespace tsprun::detail::sim::timeline_test
