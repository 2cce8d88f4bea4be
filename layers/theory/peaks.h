// A forecast of memory peaks, for every scheme: the schedule itself runs on a phantom rank (Context::phantom()), which books what
// it and its collectives allocate, and computes nothing. It is exact for ranks that share memory, and for others that are
// described by PeakOptions::peers.
#pragma once

#include "core/context.h"
#include "core/memory/category.h"
#include "layers/model/model.h"
#include "layers/theory/layouts.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace tsprun::theory {

struct PeakOptions {
  std::size_t threads = 1;          ///< of a rank: kernels' workspace
  std::size_t kv_bucket_heads = 0;  ///< as ModelOptions
  bool training = true;             ///< training steps; false: evaluations
  std::size_t passes = 2;           ///< how many; from the second on what collectives keep for later use is there from the start
  int nodes = 1;                    ///< on which the ranks sit, in blocks; where `like` describes no peers
  bool share = true;                ///< ranks of one node share memory; likewise
  PhantomOptions like = {};         ///< peers and algorithms as the rank has them. With a budget what doesn't fit throws
                                    ///< Error(out_of_memory), as on the rank
};

/// The forecast of a run, pass by pass.
class RunPeaks {
 public:
  /// On `rank` of the mesh's ranks; options.passes is of no account. Throws Error(refused) for a layout that can't be.
  RunPeaks(const MeshSetting& of, int rank, const PeakOptions& options);
  ~RunPeaks();
  /// A training step, or an evaluation. Without ids as if they were equally frequent.
  void pass(const TokenBatch& tokens);
  /// One of `tokens` whose rows of the embedding are all this rank's.
  void pass_with_own_ids(std::size_t batch, std::size_t sequence);
  /// Of all passes so far.
  CategoryBytes peaks() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  bool training_;
};

/// Which passes of a rank's run decide its peaks: those that no earlier one with the same memory around it surpasses. The others
/// can be left out of a forecast.
class DecisivePasses {
 public:
  /// Pass `number` is over. `rows`: Model::rows_given(); `held`: bytes in use on the heap now, between passes.
  void note(std::uint64_t number, std::size_t batch, std::size_t sequence, std::size_t rows, std::uint64_t held);
  /// In order; few: their number grows as the logarithm of the run's length.
  const std::vector<std::uint64_t>& numbers() const { return numbers_; }

 private:
  struct Pass {
    std::size_t batch;
    std::size_t sequence;
    std::size_t rows;
  };
  std::vector<std::uint64_t> numbers_;
  std::vector<Pass> alike_;  // decisive ones since what is held between passes changed
  std::uint64_t held_ = 0;
};

/// Peaks by category and in total on `rank` of the mesh's ranks. `ids` [B, S] in natural order: how many rows of the embedding go
/// where depends on them; empty: as if ids were uniform. Throws Error(refused) for a layout that can't be.
CategoryBytes peaks(const MeshSetting& of, int rank, std::span<const std::int32_t> ids = {}, const PeakOptions& options = {});
/// Of the rank that holds most, for ids of any kind.
CategoryBytes peaks_of_fullest(const MeshSetting& of, const PeakOptions& options = {});
/// The budget that the rank which needs most needs, to the byte. Asked of each rank of a replica; of the fullest and the first
/// kMostAsked where there are more.
struct Need {
  CategoryBytes evenly;       ///< for ids that spread evenly over the ranks' rows
  std::uint64_t any_ids = 0;  ///< total for ids of any kind: at worst all rows of a pass are one rank's
};
Need need(const MeshSetting& of, const PeakOptions& options = {});
inline constexpr int kMostAsked = 16;
/// Whether ranks with such a budget get through, whatever the ids are.
bool fits(const MeshSetting& of, std::uint64_t budget, const PeakOptions& options = {});
/// Of generating text: a prompt, the first `prompt` of `ids`, and the other ids as tokens after it, one at a time. Batch and
/// sequence of the setting are of no account.
CategoryBytes decoding_peaks(const MeshSetting& of, int rank, std::span<const std::int32_t> ids, std::size_t prompt,
                             const PeakOptions& options = {});
/// Of one block on its own (layers/model/single_block.h), forward and with options.training backward.
CategoryBytes block_peaks(const MeshSetting& of, int rank, const PeakOptions& options = {});

}  // namespace tsprun::theory
