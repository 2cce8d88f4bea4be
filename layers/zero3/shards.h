// What ZeRO-3 moves: the packs of sublayers, whose rows are spread evenly over the ranks of an axis; whole packs gathered for one
// visit, and their gradients on the way to the rows' owners.
#pragma once

#include "core/collectives/chunks.h"
#include "core/rank/rank.h"
#include "layers/model/parameter_store.h"

#include <cstddef>
#include <vector>

namespace tsprun {

/// Rows [first, first + count) of a pack: as many parts, some of them without rows.
PackPlan cut_pack(const PackPlan& whole, std::size_t first, std::size_t count);
/// Rows of all parts.
std::size_t pack_rows(const PackPlan& plan);

/// A pack during a visit: all rows, in the order of the plan.
class GatheredPack {
 public:
  /// Begins to gather `own` rows, this rank's, of `rows` in all. A lone rank uses its own.
  void fetch(Rank& rank, Communicator& axis, const Tensor& own, const Chunks& rows);
  /// [rows, width], once they are all here.
  const Tensor& wait(Rank& rank);
  void release() { *this = {}; }

 private:
  OwnedTensor memory_;
  Tensor whole_;
  Work work_;
};

/// Gradients of whole packs, one after another: one is on its way to the rows' owners while the next is computed.
class ScatteredGradients {
 public:
  /// Where this rank's part of the gradient of a pack is computed [rows, width], of `own`'s type: in place on a lone rank. Waits
  /// until the one before has left.
  Tensor begin(Rank& rank, Communicator& axis, const Tensor& own, const Chunks& rows);
  /// It is complete: sums, in canonical order, go to their owners' `own`.
  void scatter();
  /// Returns when all sums are there.
  void settle();

 private:
  Rank* rank_ = nullptr;
  Communicator* axis_ = nullptr;
  Tensor own_;
  std::vector<std::size_t> counts_;
  OwnedTensor memory_;
  Work work_;
};

}  // namespace tsprun
