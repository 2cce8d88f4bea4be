// Training checkpoints: everything that a run needs to go on bit-identically, as a folder that is also a model folder.
//
//   DIR/step-000120/
//     config.json                 the model, Hugging Face's way
//     model.safetensors           its weights, in its dtype: whole tensors, Hugging Face's names
//     optimizer.m.safetensors     first moments, by the same names
//     optimizer.v.safetensors     second moments
//     optimizer.master.safetensors  f32 weights, where the model is bf16
//     manifest.json               written last: the run's facts; size and checksum of every other file
//
// Files hold natural order and no trace of a layout, so that any layout and number of ranks can go on from them.
//
//   save    DIR/step-000120.partial/ is written by all ranks, synced, then renamed. A folder without that suffix is whole.
//   search  newest first; sizes and checksums are verified; before ranks start, in the launcher
//   load    by all ranks, each its slices
//
// Errors of one rank are learned by all: every rank throws the same Error, and no rank waits for one that gave up.
#pragma once

#include "core/rank/rank.h"
#include "layers/model/config.h"
#include "layers/model/parameter_store.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsp {

/// What a run is, beside its model and its weights. A run that goes on with the same facts goes on bit-identically.
struct CheckpointState {
  std::uint64_t step = 0;  ///< updates done; the next is step + 1
  std::uint64_t seed = 0;
  DType dtype = DType::f32;  ///< of the parameters

  // Which tokens a step sees follows from these, the seed and the step.
  std::size_t batch = 1;
  std::size_t sequence = 1;
  std::uint64_t data_tokens = 0;  ///< length of the stream of tokens

  // The update.
  double learning_rate = 3e-4;
  std::uint64_t warmup = 0;  ///< steps
  double weight_decay = 0.01;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double clip = 1.0;

  // The world: other ones continue the same curve, but within rounding.
  int ranks = 1;
  std::string layout;   ///< "tsp=4"
  std::string kernels;  ///< "avx512"

  bool operator==(const CheckpointState&) const = default;
};

/// A line for each fact in which a run differs from the one that was saved, but for the step: "--lr: 0.001 now, 0.0003 in the
/// checkpoint". Empty: it will go on bit-identically.
std::vector<std::string> differences(const CheckpointState& saved, const CheckpointState& now);

/// `--save DIR`, before ranks start: nothing is made yet. Throws Error(refused) if `dir` can't be written, or if its disk has no
/// room for one checkpoint of the model.
void check_save_folder(const std::filesystem::path& dir, const ModelConfig& config, DType dtype);

/// Which checkpoints a folder holds at a moment: by step, when the manifest of each was written.
using CheckpointMarks = std::map<std::uint64_t, std::filesystem::file_time_type>;

/// Of `dir` now. Empty if it is no folder, or can't be read.
CheckpointMarks checkpoints_in(const std::filesystem::path& dir);
/// True if `dir`'s checkpoint of that step is still the one that was marked.
bool is_marked(const CheckpointMarks& marks, const std::filesystem::path& dir, std::uint64_t step);

struct SaveOptions {
  std::size_t keep = 0;         ///< checkpoints that stay, this one included; 0: all
  CheckpointMarks others = {};  ///< another run's: those that are still the same stay, too, and aren't counted
  /// Called on every rank as it begins each part of a save, with its name: a moment to log, or to break.
  std::function<void(std::string_view)> on_part = {};
};

struct SavedCheckpoint {
  std::filesystem::path folder;       ///< "DIR/step-000120"
  std::uint64_t bytes = 0;            ///< of all files
  std::vector<std::string> warnings;  ///< on rank 0: an old checkpoint that couldn't be deleted
};

/// Writes DIR/step-NNNNNN, by all ranks of `ranks`, which hold every part of the model; all pass the same arguments. Leftovers of
/// interrupted saves are removed first, old checkpoints beyond `keep` last. A checkpoint of the same step is replaced. Needs a
/// store that trains, and a folder that all ranks see. Throws Error(refused) on all ranks, and leaves what was there, if any rank
/// can't write (a full disk).
SavedCheckpoint save_checkpoint(Rank& rank, Communicator& ranks, const ParameterStore& store, const ModelConfig& config,
                                const CheckpointState& state, const std::filesystem::path& dir, const SaveOptions& options = {});

/// A checkpoint whose manifest has been read.
struct FoundCheckpoint {
  std::filesystem::path folder;
  ModelConfig config;
  CheckpointState state;
  std::string checksum;  ///< of the manifest, and so of everything: XXH3-128, 32 hexadecimal digits
};

struct CheckpointSearch {
  std::optional<FoundCheckpoint> found;  ///< the newest whole one
  std::vector<std::string> skipped;      ///< a line for each newer one that is damaged: file, field, what was expected
};

/// `--resume DIR`: the newest whole checkpoint in `dir`, or `dir` itself where it is one. Reads every byte of the files. Removes
/// what interrupted saves left, where it may. Those of `others` that are still the same are passed over: another run's. Needs no
/// context. Throws Error(refused) if `dir` is no readable folder.
CheckpointSearch search_checkpoints(const std::filesystem::path& dir, const CheckpointMarks& others = {});

/// The same; throws Error(refused), one line with what was skipped and why, if there is none.
FoundCheckpoint find_checkpoint(const std::filesystem::path& dir, std::vector<std::string>& skipped);

/// One checkpoint folder. Verifies sizes, and every byte with `verify_bytes`. Throws Error(refused).
FoundCheckpoint open_checkpoint(const std::filesystem::path& folder, bool verify_bytes);

/// Fills the store (parameters, and with training moments and master weights) by all ranks of `ranks`, under any layout. Throws
/// Error(refused) on all ranks: the dtype isn't the store's, a tensor is missing or has another shape, ranks see different
/// checkpoints.
void load_checkpoint(Rank& rank, Communicator& ranks, ParameterStore& store, const FoundCheckpoint& checkpoint);

}  // namespace tsp
