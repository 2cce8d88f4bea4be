// The packs that a rank owns, during a pass. Mostly the store has all of each. Where data ranks share weights (--dp zero3), the
// store has a part, and the others have the rest: a pack is gathered for each visit, and its gradient is summed at the owners of
// its parts:
//
//   fetch()      begins to gather the pack, while the sublayer before is computed
//   arrive()     waits for it; values() are its rows
//   used()       frees it
//   gradient()   memory for the pack's gradient of this micro-batch
//   complete()   begins to reduce-scatter it; what arrives is added to the rank's part, in the order of micro-batches
//
// Chunks are those of an all_reduce of the pack, so a step of one micro-batch has the bits of plain dp, unless ranks of a replica
// have copies (sp; the vocabulary under plain tp) or dp stands beside shard: these sum their parts afterwards
// (docs/algorithms.md, "Order of sums"). Whoever computes with the packs makes these calls and needn't know which it is.
#pragma once

#include "core/rank/rank.h"
#include "layers/layout/mesh.h"
#include "layers/parameters/parameter_store.h"
#include "layers/schedules/micro_batch.h"

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// The ranks among which packs of a kind and their gradients move. Borrowed.
struct PackRanks {
  Communicator* sharers;         ///< those with other sequences over which packs are cut, if they are
  Communicator* copies;          ///< those of a replica with copies, over which sums follow the last micro-batch
  Communicator* copies_of_part;  ///< of a pack that is cut: all with the same part

  /// Returns those that layers/parameters/place.h says.
  static PackRanks of(Mesh& mesh, PackKind pack);
};

/// Function that is called with a pack's gradient of a micro-batch, [rows, width], when it is complete on this rank, before it
/// is scattered, if the pack is cut: it posts what else is to be summed on Stream::gradients.
using BeforeScatter = std::function<void(std::size_t pack, const Tensor& gradient)>;

/// The packs of one rank in one pass. Used by the rank's thread; all `sharers` make the same calls in the same order. Packs
/// bear their numbers in the store.
class OwnPacks {
 public:
  /// Borrows rank, ranks and store.
  OwnPacks(Rank& rank, const PackRanks& ranks, const ParameterStore& store, const MicroBatch& of,
           BeforeScatter before_scatter = {});

  /// Returns whether the rank holds only a part of the pack between visits.
  bool is_cut(std::size_t pack) const { return store_.is_cut(pack); }

  /// Begins to gather a pack, unless that was begun or the store has all of it. Throws Error(out_of_memory).
  void fetch(std::size_t pack);
  /// Returns the rows of parts [first, first + count) of a pack, or of all parts. Of a pack that is cut, they have their values
  /// after arrive(), and no memory before fetch() and after used().
  Tensor values(std::size_t pack, std::size_t first, std::size_t count) const;
  Tensor values(std::size_t pack) const { return values(pack, 0, store_.plan(pack).parts.size()); }
  /// Returns the transfer after which values() has its values, for whoever waits for it later.
  Work arrival(std::size_t pack) const;
  void arrive(std::size_t pack) const {
    if (is_cut(pack)) rank_.wait(arrival(pack));
  }
  /// Tells that nobody reads the values any more.
  void used(std::size_t pack) { gathered_.erase(pack); }

  /// Returns the memory for this micro-batch's gradient of parts [first, first + count), or of all parts. Of a pack that is cut
  /// all parts share one piece of memory, which lives until complete(), and sums of packs before are waited for first. `category`
  /// and `what`: of the memory of a later micro-batch's gradient, if the store has all of the pack.
  MicroBatchGradient gradient(std::size_t pack, std::size_t first, std::size_t count, Category category, std::string_view what);
  MicroBatchGradient gradient(std::size_t pack, Category category, std::string_view what) {
    return gradient(pack, 0, store_.plan(pack).parts.size(), category, what);
  }
  /// Tells that the gradient of all parts was written, or will be by what is posted on Stream::gradients. Does nothing if the
  /// store has all of the pack.
  void complete(std::size_t pack, Purpose purpose = Purpose::gradients);
  /// Waits for the sums that are under way, whose memory is then free. gradient() does it, too.
  void settle();
  /// Returns when all that was begun is complete.
  void end();

 private:
  /// A gradient on its way to the owners of its parts.
  struct Scattered {
    std::size_t pack;
    Purpose purpose;
    OwnedTensor whole;
    MicroBatchGradient own;
    Work work;
  };
  std::size_t row_of(std::size_t pack, std::size_t part) const;
  OwnedTensor whole(std::size_t pack, DType dtype, std::string_view what) const;

  Rank& rank_;
  PackRanks ranks_;
  const ParameterStore& store_;
  const MicroBatch micro_batch_;
  const BeforeScatter before_scatter_;
  std::map<std::size_t, Transfer> gathered_;      // by pack
  std::map<std::size_t, OwnedTensor> gradients_;  // by pack, until complete()
  std::deque<Scattered> scattered_;
  std::vector<Work> summing_copies_;
};

}  // namespace tsprun::detail
