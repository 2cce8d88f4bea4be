// Forecast of memory peaks and traffic for every scheme. The schedule itself runs on a phantom rank (make_phantom()): one whose
// allocations, and those of its collectives, are booked, whose kernels aren't run, and which counts what it would receive. The
// forecast is exact for ranks that share memory, and for other placements if PeakOptions::peers or `nodes` describes them.
#pragma once

#include "core/context.h"
#include "core/program/program.h"
#include "layers/model/decode.h"
#include "layers/model/model.h"
#include "layers/theory/layouts.h"
#include "tsprun/memory.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tsprun::detail::theory {

/// Conditions of the run whose memory is forecast.
struct PeakOptions {
  std::size_t threads = 1;          ///< threads of a rank, which determine the kernels' workspace
  std::size_t kv_bucket_heads = 0;  ///< as in ModelOptions
  bool training = true;             ///< true: forecast training steps; false: evaluations
  bool files = false;               ///< weights are read from files, and a block's gradients written to one
  std::size_t passes = 2;           ///< passes of the run. Two suffice: from the second on, kept buffers exist from the start
  int nodes = 1;                    ///< nodes that hold the ranks, in blocks; ignored if `like` describes peers
  bool share = true;                ///< whether ranks of one node share memory; likewise ignored
  PieceSizes pieces = {};           ///< that the rank works in
  Recorder* recorder = nullptr;     ///< records the phantom's program; null: nothing does; borrowed
  PhantomOptions like = {};         ///< peers and algorithms as the rank has them. If it has a budget, what doesn't fit throws
                                    ///< Error(out_of_memory), as on the rank
};

/// Memory that one rank holds and bytes that it receives.
struct RankCounts {
  CategoryBytes memory{};  ///< peaks, over the whole run
  Traffic traffic{};       ///< received in one pass
  PurposeBytes tokens{};   ///< of generation: received for all tokens after the prompt, whose pass is then `traffic.forward`
};

/// Forecast of a run, pass by pass.
class RunPeaks {
 public:
  /// Prepares the forecast for `rank` of the mesh. Ignores options.passes, and batch, sequence and micro-batches of the setting.
  /// Throws Error(refused) for an impossible layout.
  RunPeaks(const MeshSetting& of, int rank, const PeakOptions& options);
  ~RunPeaks();
  /// Runs one training step, or an evaluation where the options are not of training. Without ids, as if all ids were equally
  /// frequent.
  void pass(const TokenBatch& tokens);
  /// Runs one evaluation, also between training steps.
  void evaluate(const TokenBatch& tokens);
  /// Runs one pass over tokens without ids as if all of their embedding rows belonged to this rank, the worst case.
  void pass_with_own_ids(TokenBatch tokens);
  /// Books what saving a checkpoint takes now, between passes.
  void save();
  /// Returns the peaks over all passes so far.
  CategoryBytes peaks() const;
  /// Returns what the rank received in the last pass.
  Traffic traffic() const;
  /// Returns what is in use now, between passes.
  CategoryBytes use() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  bool training_;
};

/// A step of a rank as a program, what it received in it, and the peaks of its run.
struct RecordedStep {
  Program program;
  Traffic traffic;
  CategoryBytes peaks;
  std::uint64_t saving = 0;  ///< total peak where the run also saves a checkpoint
};
/// Records the last of `passes` steps of `rank`. Buffers that are kept for later use exist from the second on. `count_received`:
/// see Recorder.
RecordedStep record_step(const MeshSetting& of, int rank, PeakOptions options, int passes, bool count_received);

/// Finds the passes of a rank's run that decide its memory peaks. A pass isn't decisive if an earlier one had the same batch and
/// sequence, as many micro-batches, at least as many embedding rows to give, and the same memory in use before it; a forecast can
/// leave it out.
class DecisivePasses {
 public:
  /// Notes that pass `number` has ended. `rows`: what Model::rows_given() returns of it; `held`: bytes in use on the heap now,
  /// between passes.
  void note(std::uint64_t number, const TokenBatch& tokens, const Model::RowsGiven& rows, std::uint64_t held);
  /// Adds a pass of another kind, whatever came before.
  void add(std::uint64_t number) { numbers_.push_back(number); }
  /// Returns the numbers of the decisive passes, in order. They are few: their count grows as the logarithm of the run's length.
  const std::vector<std::uint64_t>& numbers() const { return numbers_; }

 private:
  struct Pass {
    std::size_t batch;
    std::size_t sequence;
    std::size_t micro_batches;
    Model::RowsGiven rows;
  };
  std::vector<std::uint64_t> numbers_;
  std::vector<Pass> alike_;  // decisive passes since `held_` last changed
  std::uint64_t held_ = 0;
};

/// Returns the peaks, by category and in total, on `rank` of the mesh. `ids` [B, S], in natural order, decide how many embedding
/// rows go where; if empty, they are taken as uniformly distributed. Throws Error(refused) for an impossible layout.
CategoryBytes peaks(const MeshSetting& of, int rank, std::span<const std::int32_t> ids = {}, const PeakOptions& options = {});
/// Heap budget that the neediest rank needs, to the byte.
struct Need {
  CategoryBytes evenly;       ///< peaks for ids that spread evenly over the ranks' rows
  std::uint64_t any_ids = 0;  ///< total for ids of any kind; at worst all rows of a pass belong to one rank
  std::uint64_t saving = 0;   ///< total where the run also saves checkpoints; at least any_ids
};
/// Largest number of ranks, besides the fullest, at which forecasts of the largest need look.
inline constexpr int kMostAsked = 16;
/// Returns the ranks at which forecasts of the largest need look: the fullest, and the first kMostAsked of a replica, and of
/// each further stage of a pipeline a part of as many.
std::vector<int> asked(const MeshSetting& of);
/// Returns the largest need of the ranks that are asked().
Need need(const MeshSetting& of, const PeakOptions& options = {});
/// Returns whether ranks with this budget (bytes) get through, whatever the ids are.
bool fits(const MeshSetting& of, std::uint64_t budget, const PeakOptions& options = {});
/// Returns the counts of decoding the texts of this rank's replica together: their prompts, and then the tokens that are put in
/// after them, equally many to each. Ignores batch and sequence of the setting.
RankCounts decoding_counts(const MeshSetting& of, int rank, std::span<const DecodedText> texts, const PeakOptions& options = {});
/// Returns the counts of one block on its own (layers/model/single_block.h): forward, and backward if options.training is true.
RankCounts block_counts(const MeshSetting& of, int rank, const PeakOptions& options = {});

}  // namespace tsprun::detail::theory
