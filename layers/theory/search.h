// Every layout of N GPUs over the axes dp, tp, sp, tsp and zero3, with the variants of tp and sp, each with the recomputation
// that suits it best: which fit a GPU's memory, and how long a step takes.
#pragma once

#include "core/memory/category.h"
#include "layers/theory/machine.h"
#include "layers/theory/spread.h"
#include "layers/theory/step_time.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::theory {

/// All that the grammar of --layout allows, axes of degree 1 left out: dp before any, then one of tsp, zero3, tp, sp, tp and sp
/// in either order, tp and tsp in either order.
std::vector<Spread> all_spreads(int ranks);

struct Candidate {
  Spread spread;
  /// Layouts that differ from `spread` in the order of their axes alone, and on this machine in no figure.
  std::vector<Spread> alike;
  Recompute recompute = Recompute::none;  ///< the fastest mode that fits; if none does, the one that needs least
  bool fits = false;
  std::string why;        ///< what doesn't fit, or what binds
  bool possible = false;  ///< the model can be spread so: the following is known
  CategoryBytes memory;   ///< peak of the rank that holds most
  StepTime time;
  double tokens_per_s = 0;
  double utilization = 0;  ///< model FLOPs utilization: see model_flops()
};

struct SearchOptions {
  std::uint64_t memory_bytes = 0;  ///< of a GPU
  DType dtype = DType::f32;
  /// Modes to choose from; empty: the setting's.
  std::vector<Recompute> modes = {};
};

/// FLOPs that a step needs whatever the layout and without any recomputation, with causal pairs of attention alone. Over all
/// GPUs' peak FLOP/s and the step's seconds they are the model FLOPs utilization (MFU).
double model_flops(const Setting& setting);

/// One layout judged.
Candidate judge(const Setting& setting, const Spread& spread, const Machine& machine, const SearchOptions& options);
/// All, those that fit first, fastest first; then the others by what they lack, impossible ones last. Each layout stands there
/// once.
std::vector<Candidate> search(const Setting& setting, int gpus, const Machine& machine, const SearchOptions& options);

/// What would help where no layout fits: the same layout, with one thing changed at a time. What doesn't help within reason is
/// left out.
struct Remedies {
  Candidate least;                     ///< the layout that needs least
  std::uint64_t memory_bytes = 0;      ///< that it needs
  std::optional<Candidate> more_gpus;  ///< the same axes on up to kMostTimes times as many GPUs
  std::size_t batch = 0;               ///< the largest that fits of batch/2, batch/4, …; 0: none does
  std::size_t sequence = 0;            ///< likewise
};
inline constexpr int kMostTimes = 64;
/// Nothing if no layout is possible, or one fits. `found`: by search().
std::optional<Remedies> remedies(const Setting& setting, const std::vector<Candidate>& found, const Machine& machine,
                                 const SearchOptions& options);

}  // namespace tsprun::theory
