// Gradients of a step that is computed in several micro-batches, one after another: those of the first replace what the store
// holds, those of later ones are added, in order.
//
// What is summed over ranks follows from who has the weights:
//
//   owners of shards (tsp, zero3, the vocabulary's rows):    each micro-batch's sum over ranks is complete before it is added
//                                                            to those before
//   ranks with copies (dp, sp, K/V heads under tp, norms):   a rank adds up its own micro-batches; the sum over ranks follows
//                                                            the last
//   data ranks with parts (--dp zero3, own_packs.h):         each micro-batch's sum over them, and over copies of K/V heads, is
//                                                            complete before it is added; sums over other copies, and over dp
//                                                            beside shard, follow the last
//
// So a contribution is always finished in memory of its own before it is added, and bits don't depend on when messages arrive.
// Two are added in place instead, row by row or tile by tile, as within a micro-batch: the embedding's rows, and the head's
// gradient where the rank that owns it computes it alone, unless data ranks have parts of them; so are vectors (norms, biases).
#pragma once

#include "core/rank/rank.h"

#include <cstddef>
#include <string_view>

namespace tsprun::detail {

/// The place of a pass among the micro-batches of its step.
struct MicroBatch {
  std::size_t number = 0;  ///< from 0
  std::size_t count = 1;   ///< M, at least 1

  bool first() const { return number == 0; }
  bool last() const { return number + 1 == count; }
  /// Returns how a product is written to a gradient that is accumulated in place.
  kernels::Write write() const { return first() ? kernels::Write::replace : kernels::Write::add; }
};

/// The gradient of some of a rank's own weights in one micro-batch: where a pass writes it, and how it gets to the sum of all
/// micro-batches. Of the first micro-batch it is that sum's own memory, so a step of one micro-batch costs neither memory nor
/// time.
class MicroBatchGradient {
 public:
  MicroBatchGradient() = default;
  /// Takes the sum [rows, width] in the type of sums, which must outlive it. `what` names the memory in errors; it is booked as
  /// `category`. Throws Error(out_of_memory).
  MicroBatchGradient(Rank& rank, const MicroBatch& of, const Tensor& sum, Category category, std::string_view what)
      : rank_(&rank), sum_(sum), rows_(sum) {
    if (of.first() || sum.elements() == 0) return;
    memory_ = rank.tensor(category, sum.dtype(), {sum.size(0), sum.size(1)}, what);
    rows_ = memory_;
  }

  /// Returns where this micro-batch's gradient is to be written, all of it; contiguous if the sum is.
  const Tensor& rows() const { return rows_; }
  /// Adds the gradient, which must be complete, to the sum, and frees its memory. Does nothing a second time, and for the first
  /// micro-batch, whose gradient is the sum.
  void add() {
    if (!memory_.exists()) return;
    rank_->compute().add(sum_, sum_, rows_);
    memory_.reset();
    rows_ = sum_;
  }

 private:
  Rank* rank_ = nullptr;
  Tensor sum_;
  Tensor rows_;
  OwnedTensor memory_;
};

}  // namespace tsprun::detail
