// What the program of a rank says of its step without being played: memory, FLOPs, received bytes, and how long its kernels take.
// Of a model with many layers that are alike, each figure grows evenly with their number, so programs with few say it of all.
#pragma once

#include "layers/theory/kernel_price.h"
#include "layers/theory/machine.h"
#include "layers/theory/peaks.h"
#include "layers/theory/what_binds.h"
#include "tsprun/types.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tsprun::detail::theory {

/// Figures of one rank's step.
struct RankFigures {
  CategoryBytes peaks{};                            ///< of memory
  std::array<std::uint64_t, kPurposes> received{};  ///< payload bytes, by purpose
  double flops = 0;                                 ///< of products and attention
  double kernels = 0;                               ///< seconds, one after another
  std::vector<double> kernels_without{};            ///< the same, on the machine without each resource

  /// Returns whether this rank receives and computes what another one does, and holds nearly as much: what collectives need for
  /// small messages depends on how many layers share one.
  bool is_nearly(const RankFigures& other) const;
};

/// Returns the FLOPs of a program's products and attention.
double flops_of(const Program& program);
/// Returns the figures of a recorded step.
RankFigures figures_of(const RecordedStep& step, const Machine& machine, const PriceFacts& facts,
                       const std::vector<WhatIf>& without);
/// Returns the figures of a rank with more layers: those of `more`, and `times` what it has more than `few`.
RankFigures grown(const RankFigures& few, const RankFigures& more, std::size_t times);

}  // namespace tsprun::detail::theory
