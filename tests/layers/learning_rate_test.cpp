// Learning rates of all steps against the schedules of PyTorch and transformers, written here as those are: a factor of the peak
// by the number of steps that are done.
#include "layers/parameters/learning_rate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tsprun::detail::learning_rate_test {
namespace {

/// Returns the factor of transformers' get_{linear,cosine}_schedule_with_warmup after `done` steps: half of a cosine, or a line.
double transformers_factor(bool cosine, int done, int warmup, int steps) {
  const double progress = static_cast<double>(done - warmup) / std::max(1, steps - warmup);
  return cosine ? std::max(0.0, 0.5 * (1 + std::cos(3.14159265358979323846 * 0.5 * 2 * progress))) : 1 - progress;
}

TEST(LearningRate, FallsAsInTransformers) {
  for (const std::uint64_t warmup : {0U, 1U, 7U}) {
    constexpr int kSteps = 41;
    for (const bool cosine : {false, true}) {
      const LearningRate rate{.schedule = cosine ? RateSchedule::cosine : RateSchedule::linear,
                              .peak = 3e-3,
                              .least = 5e-4,
                              .warmup = warmup,
                              .steps = kSteps};
      for (int done = static_cast<int>(warmup); done < kSteps; ++done) {
        const double factor = transformers_factor(cosine, done, static_cast<int>(warmup), kSteps);
        EXPECT_NEAR(rate.at(static_cast<std::uint64_t>(done) + 1), 5e-4 + (3e-3 - 5e-4) * factor, 1e-17) << done;
      }
    }
  }
}

TEST(LearningRate, GrowsLinearlyToThePeak) {
  for (const RateSchedule schedule : {RateSchedule::constant, RateSchedule::linear, RateSchedule::cosine, RateSchedule::wsd}) {
    const LearningRate rate{.schedule = schedule, .peak = 0.5, .warmup = 4, .steps = 20};
    EXPECT_EQ(rate.at(1), 0.125);
    EXPECT_EQ(rate.at(3), 0.375);
    EXPECT_EQ(rate.at(4), 0.5);
    EXPECT_EQ(rate.at(5), 0.5);
  }
}

TEST(LearningRate, StaysAtThePeakUntilTheLastStepsOfWsd) {
  const LearningRate rate{.schedule = RateSchedule::wsd, .peak = 1, .least = 0.5, .warmup = 2, .steps = 95};
  EXPECT_EQ(rate.default_decay(), 10U);
  for (std::uint64_t step = 2; step <= 86; ++step) EXPECT_EQ(rate.at(step), 1) << step;
  for (std::uint64_t step = 87; step <= 95; ++step)
    EXPECT_NEAR(rate.at(step), 1 - 0.05 * static_cast<double>(step - 86), 1e-15) << step;
}

TEST(LearningRate, FallsInTheStepsThatAreGiven) {
  LearningRate rate{.schedule = RateSchedule::linear, .peak = 8, .warmup = 3, .steps = 20, .decay = 4};
  for (std::uint64_t step = 3; step <= 17; ++step) EXPECT_EQ(rate.at(step), 8) << step;
  EXPECT_EQ(rate.at(18), 6);
  EXPECT_EQ(rate.at(20), 2);
  rate.schedule = RateSchedule::cosine;
  EXPECT_NEAR(rate.at(19), 4, 1e-15);
}

TEST(LearningRate, StaysAtThePeakWithoutASchedule) {
  const LearningRate rate{.peak = 0.25, .warmup = 2};
  EXPECT_EQ(rate.at(1), 0.125);
  for (const std::uint64_t step : {2U, 3U, 1'000'000U}) EXPECT_EQ(rate.at(step), 0.25);
}

}  // namespace
}  // namespace tsprun::detail::learning_rate_test
