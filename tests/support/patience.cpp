// Compares what a round of waiting took with what it had to take.
#include "tests/support/patience.h"

#include <chrono>
#include <ctime>
#include <thread>

namespace tsprun::detail::test {

namespace {

constexpr std::uint64_t kSleepNs = 2'000'000;
constexpr std::uint64_t kSlackNs = 500'000;  // of timers, and of a scheduler that is in no hurry

std::uint64_t work_of_this_thread_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace

PatientWatch::PatientWatch() : start_ns_(posix::now_ns()), lost_at_start_(lost_seconds()) {}

double& PatientWatch::lost_seconds() {
  thread_local double lost = 0;
  return lost;
}

Rounds::Rounds() : wall_ns_(posix::now_ns()), work_ns_(work_of_this_thread_ns()) {}

void Rounds::pause() {
  std::this_thread::sleep_for(std::chrono::nanoseconds(kSleepNs));
  const std::uint64_t wall = posix::now_ns();
  const std::uint64_t work = work_of_this_thread_ns();
  const std::uint64_t took = wall - wall_ns_;
  const std::uint64_t had_to = work - work_ns_ + kSleepNs + kSlackNs;
  if (took > had_to) PatientWatch::lost_seconds() += static_cast<double>(took - had_to) * 1e-9;
  wall_ns_ = wall;
  work_ns_ = work;
}

}  // namespace tsprun::detail::test
