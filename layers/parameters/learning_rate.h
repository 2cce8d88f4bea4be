// The learning rate of each step of a training: a linear warm-up, then a schedule.
//
//   step ≤ W              peak · step / W
//   then, s = step − 1:   constant  peak
//                         linear    least + (peak − least)·(1 − x)
//                         cosine    least + (peak − least)·(1 + cos πx) / 2
//                         wsd       peak, then as linear (warm-up, stable, decay)
//   x = (s − (N − D)) / D, the share that the last D of N steps have gone; 0 before them
//
// As in llm.c and transformers, the first step after the warm-up has the whole peak, and the rate would reach its least value in
// step N + 1, so that no step is wasted on a rate of zero.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tsprun::detail {

/// How the learning rate goes on after the warm-up.
enum class RateSchedule : std::uint8_t { constant, linear, cosine, wsd };
/// Their names in options and files, in the order of the enumerators.
inline constexpr std::array<std::string_view, 4> kRateSchedules = {"constant", "linear", "cosine", "wsd"};

/// Learning rates of a run.
struct LearningRate {
  RateSchedule schedule = RateSchedule::constant;
  double peak = 0;           ///< after the warm-up
  double least = 0;          ///< where the rate would be after the last step; not used by a constant one
  std::uint64_t warmup = 0;  ///< W, steps
  std::uint64_t steps = 0;   ///< N, of the whole run; not used by a constant one
  std::uint64_t decay = 0;   ///< D, from 1 to N − W; 0: the default of default_decay()

  /// Returns D where none was given: all steps after the warm-up, for wsd a tenth of all steps (rounded up, at most all after the
  /// warm-up).
  std::uint64_t default_decay() const;
  /// Returns the rate of a step, counted from 1.
  double at(std::uint64_t step) const;
};

}  // namespace tsprun::detail
