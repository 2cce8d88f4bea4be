// Counts of what a training step moves and computes: phantoms record the program of the step (core/program/program.h), and its
// items are added up by part of the pass. There are no formulas here, so that whatever a schedule does is counted.
//
// Ranks whose programs differ only by where they sit are asked once. Which these are follows from what each of them and its
// neighbours hold: the same parameters, tokens, heads and rows.
#pragma once

#include "core/program/program.h"
#include "layers/theory/flops.h"
#include "layers/theory/peaks.h"

#include <array>
#include <vector>

namespace tsprun::detail::theory {

/// Amounts of one rank's program.
struct RankAmounts {
  /// Bytes received by purpose, forward and backward: this rank's part of what all ranks of its groups receive.
  std::array<std::array<long double, kPurposes>, 2> received{};
  StepFlops flops;
};
/// Returns the amounts of a training step's program.
RankAmounts amounts_of(const Program& program);

/// Traffic and FLOPs of one training step.
struct StepCounts {
  Traffic traffic;  ///< received by all ranks together
  StepFlops flops;  ///< of the rank that computes most
};

/// Ranks that do the same, and the one that is asked for all of them.
struct RankClass {
  int rank = 0;   ///< the one of them that has most query-key pairs; of several, the fullest (fullest()) if it is one
  int count = 0;  ///< how many they are
};

/// Returns the classes of all ranks.
std::vector<RankClass> classes_of(const MeshSetting& of);
/// Counts a training step on all ranks. Takes token ids as equally frequent; where tokens, heads or rows don't divide evenly, the
/// rows of the embedding that move may be off by a few. `of_fullest`: the amounts of the fullest rank, if they are known. Throws
/// Error(refused) for an impossible layout.
StepCounts step_counts(const MeshSetting& of, const PeakOptions& options = {}, const RankAmounts* of_fullest = nullptr);

}  // namespace tsprun::detail::theory
