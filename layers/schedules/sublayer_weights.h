// The weights of a strategy that computes with all rows of a sublayer's pack at once (layers/schedules/dense.h): keeps them
// between visits, and moves them and their gradients.
#pragma once

#include "core/rank/rank.h"
#include "layers/parameters/parameter_store.h"
#include "layers/schedules/micro_batch.h"
#include "layers/schedules/own_packs.h"
#include "layers/schedules/packs.h"
#include "layers/schedules/strategy.h"
#include "layers/schedules/tasks.h"

#include <cstddef>
#include <memory>

namespace tsprun::detail {

/// Weights of all sublayers of one rank in one pass, and what is kept of them and their gradients between calls. The calls of a
/// pass: visit() and used() of each pack, in the order of the list of visits, which has arrived at it; begin_backward(); visit(),
/// used(), gradients() and written() of each pack; end().
class WeightsPass {
 public:
  /// Borrows everything. The pass comes next in its visits.
  WeightsPass(Rank& rank, const PassInputs& of)
      : rank_(rank), store_(of.store), visits_(of.visits), micro_batch_(of.micro_batch) {}
  WeightsPass(const WeightsPass&) = delete;
  WeightsPass& operator=(const WeightsPass&) = delete;
  virtual ~WeightsPass() = default;

  virtual void begin_backward() {}
  /// Returns all rows of the pack as soon as they have arrived; valid until used().
  virtual Tensor visit(std::size_t pack) { return store_.values(pack); }
  /// Tells that the visit doesn't need the pack's weights any more.
  virtual void used(std::size_t /*pack*/) {}
  /// Returns whether used() frees memory, so that transfers that need memory had better begin after it.
  virtual bool frees() const { return false; }
  /// Returns where this rank's gradients of all rows of the pack are to be written, in this micro-batch.
  virtual Tensor gradients(std::size_t pack) {
    own_ = {rank_, micro_batch_, store_.gradients(pack), Category::workspace, "weight gradients of a micro-batch"};
    return own_.rows();
  }
  /// Tells that the gradients were written: adds them to those of earlier micro-batches, and begins to sum them over the ranks
  /// that have other tokens, where these own shards; where they have copies, with the last micro-batch.
  virtual void written(std::size_t pack) = 0;
  /// Returns whether gradients that were written are complete, or will be on Stream::gradients. Otherwise they are when the next
  /// pack's gradients() or end() returns.
  virtual bool complete_on_stream() const { return true; }
  /// Returns when all sums are complete.
  virtual void end() = 0;

 protected:
  const ParameterStore& store() const { return store_; }
  const Visits& visits() const { return visits_; }
  const MicroBatch& micro_batch() const { return micro_batch_; }
  Rank& rank() const { return rank_; }
  /// Adds what was written to gradients() to the store.
  void add_own() { own_.add(); }

 private:
  Rank& rank_;
  const ParameterStore& store_;
  const Visits& visits_;
  const MicroBatch micro_batch_;
  MicroBatchGradient own_;
};

/// The weights of all sublayers on the ranks of an axis, which hold what layers/parameters/place.h says, and the passes that move
/// them.
class SublayerWeights {
 public:
  SublayerWeights() = default;
  SublayerWeights(const SublayerWeights&) = delete;
  SublayerWeights& operator=(const SublayerWeights&) = delete;
  virtual ~SublayerWeights() = default;

  /// Begins a pass, which borrows these weights, and what `of` borrows.
  virtual std::unique_ptr<WeightsPass> begin(const PassInputs& of) const = 0;
};

/// Every rank of the axis owns the same weights (dp, sp, tp), which it has in its store or gathers from data ranks (own_packs.h):
/// gradients are all-reduced, pack by pack.
class CopiedWeights final : public SublayerWeights {
 public:
  /// Borrows the rank and the ranks of `with`, of which `copies` is the axis.
  CopiedWeights(Rank& rank, const PackRanks& with) : rank_(rank), with_(with) {}

  std::unique_ptr<WeightsPass> begin(const PassInputs& of) const override;

 private:
  Rank& rank_;
  PackRanks with_;
};

}  // namespace tsprun::detail
