// Every layout of N GPUs over the axes dp, tp, sp, tsp and zero3, with the variants of tp and sp: which fit a GPU's memory, and
// how long a step takes.
#pragma once

#include "core/memory/category.h"
#include "layers/theory/machine.h"
#include "layers/theory/spread.h"
#include "layers/theory/step_time.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tsp::theory {

/// All that the grammar of --layout allows, axes of degree 1 left out: dp before any, then one of tsp, zero3, tp, sp, tp and sp
/// in either order, tp and tsp in either order.
std::vector<Spread> all_spreads(int ranks);

struct Candidate {
  Spread spread;
  bool fits = false;
  std::string why;        ///< what doesn't fit, or what binds
  bool possible = false;  ///< the model can be spread so: the following is known
  CategoryBytes memory;   ///< peak of the rank that holds most
  StepTime time;
  double tokens_per_s = 0;
};

struct SearchOptions {
  std::uint64_t memory_bytes = 0;  ///< of a GPU
  DType dtype = DType::f32;
};

/// One layout judged.
Candidate judge(const Setting& setting, const Spread& spread, const Machine& machine, const SearchOptions& options);
/// All, those that fit first, fastest first; then the others by what they lack, impossible ones last.
std::vector<Candidate> search(const Setting& setting, int gpus, const Machine& machine, const SearchOptions& options);

}  // namespace tsp::theory
