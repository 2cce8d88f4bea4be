// The data that ZeRO-3 moves: packs of sublayers, whose rows are spread evenly over the ranks of an axis. A whole pack is
// gathered for each visit, and its gradients are reduce-scattered to the owners of the rows.
#pragma once

#include "core/collectives/chunks.h"
#include "core/rank/rank.h"
#include "layers/parameters/parameter_store.h"

#include <cstddef>
#include <vector>

namespace tsprun::detail {

/// Returns rows [first, first + count) of a pack. The result has as many parts as the whole pack; parts outside of the rows are
/// empty.
PackPlan cut_pack(const PackPlan& whole, std::size_t first, std::size_t count);
/// Returns the number of rows of all parts.
std::size_t pack_rows(const PackPlan& plan);

/// All rows of a pack in the order of the plan, while a sublayer is computed.
class GatheredPack {
 public:
  /// Begins to gather the pack from every rank's rows; `own` are this rank's, and `rows` says how all of them are cut over the
  /// ranks. On one rank uses `own` itself.
  void fetch(Rank& rank, Communicator& axis, const Tensor& own, const Chunks& rows);
  /// Waits for the gather and returns the whole pack [rows, width].
  const Tensor& wait(Rank& rank);
  /// Frees the gathered rows.
  void release() { *this = {}; }

 private:
  OwnedTensor memory_;
  Tensor whole_;
  Work work_;
};

/// Gradients of whole packs, one after another: one is reduce-scattered while the next is computed.
class ScatteredGradients {
 public:
  /// Returns memory [rows, width] in `own`'s type for this rank's part of a pack's gradient; on one rank `own` itself. Waits
  /// for the reduce-scatter of the pack before.
  Tensor begin(Rank& rank, Communicator& axis, const Tensor& own, const Chunks& rows);
  /// Begins to sum the parts of all ranks, in canonical order, into each owner's `own`. Requires that this rank's part is
  /// complete.
  void scatter();
  /// Returns when the sums are complete.
  void settle();

 private:
  Rank* rank_ = nullptr;
  Communicator* axis_ = nullptr;
  Tensor own_;
  std::vector<std::size_t> counts_;
  OwnedTensor memory_;
  Work work_;
};

}  // namespace tsprun::detail
