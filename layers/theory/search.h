// Search over all layouts of N GPUs, each with the recomputation that suits it best: which fit a GPU's memory, and how long a
// step takes.
#pragma once

#include "layers/layout/layout.h"
#include "layers/layout/setting.h"
#include "layers/theory/machine.h"
#include "layers/theory/step_counts.h"
#include "layers/theory/step_time.h"
#include "tsprun/memory.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::theory {

/// Returns all layouts over `ranks` ranks that the grammar of --layout allows, without axes of degree 1, in every variant: those
/// with fewer replicas first, then those with fewer tensor ranks, then those that share the weights.
std::vector<Layout> all_layouts(int ranks);

/// One layout and its verdict.
struct Candidate {
  Layout layout;
  /// Layouts that differ from `layout` only in the order of their axes and, on this machine, in no figure.
  std::vector<Layout> alike;
  Recompute recompute = Recompute::none;  ///< the fastest mode that fits; if none fits, the one that needs least
  bool fits = false;
  std::string why;                     ///< why it is impossible, what doesn't fit, or which resource binds
  bool possible = false;               ///< the model can be spread like this; if false, the fields below are unset
  CategoryBytes memory;                ///< peaks of the rank that holds most
  std::uint64_t saving = 0;            ///< its total peak where a checkpoint is saved, too: what must fit
  std::optional<RankAmounts> amounts;  ///< of the same rank, on one node that shares memory
  StepTime time;                       ///< of the same rank; of the one that attends most, where documents make them differ
  double tokens_per_s = 0;
  double utilization = 0;  ///< model FLOPs utilization; see model_flops()
};

/// Options of judge() and search().
struct SearchOptions {
  std::uint64_t memory_bytes = 0;  ///< memory of one GPU
  DType dtype = DType::f32;
  /// Recomputation modes to choose from; empty: only the setting's.
  std::vector<Recompute> modes = {};
  std::string algorithms = {};  ///< TSP_ALGORITHMS, as the ranks will have it
  /// Called by search() after each layout: how many of how many are judged. Empty: nothing is.
  std::function<void(std::size_t done, std::size_t total)> progress = {};
};

/// Returns the FLOPs that one training step takes in total, whatever the layout, with Recompute::none. Attention counts the pairs
/// that masks leave. Includes the scores that flash attention computes again in backward; logits count once. Divided by the peak
/// FLOP/s of all GPUs together and by the step's seconds, it gives the model FLOPs utilization (MFU).
double model_flops(const Setting& setting);

/// Judges one layout: whether it is possible, its memory, and the time of a step. Throws what step_time() and walk() throw.
Candidate judge(const Setting& setting, const Layout& layout, const Machine& machine, const SearchOptions& options);
/// Judges all layouts of `gpus` GPUs. Those that fit come first, fastest first; then the others by the memory they need, least
/// first; impossible ones last. Layouts that differ in no figure are listed once (Candidate::alike); one whose replicas share
/// optimizer states or weights only where it is faster than the same layout with less sharing, or that doesn't fit.
std::vector<Candidate> search(const Setting& setting, int gpus, const Machine& machine, const SearchOptions& options);

/// Changes that would help where no layout fits: the layout that needs least, with one thing changed at a time. A change that
/// doesn't help within reason is left out.
struct Remedies {
  Candidate least;                     ///< the layout that needs least memory
  std::uint64_t memory_bytes = 0;      ///< memory per GPU that it needs
  std::optional<Candidate> more_gpus;  ///< the same axes on up to kMostTimes times as many GPUs, if that fits
  std::size_t batch = 0;               ///< the largest of batch/2, batch/4, … that fits; 0: none
  std::size_t sequence = 0;            ///< the largest of sequence/2, sequence/4, … that fits; 0: none
};
/// Largest factor by which remedies() multiplies the number of GPUs.
inline constexpr int kMostTimes = 64;
/// Returns what would help, or nothing if no layout is possible or one fits. `found`: the result of search().
std::optional<Remedies> remedies(const Setting& setting, const std::vector<Candidate>& found, const Machine& machine,
                                 const SearchOptions& options);

}  // namespace tsprun::detail::theory
