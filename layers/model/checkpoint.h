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

namespace tsprun {

/// What a run is, beside its model and its weights. A run that goes on with the same facts goes on bit-identically.
struct CheckpointState {
  /// The run's identity, 32 hexadecimal digits (see new_run_identity()): the same in all checkpoints of a run, also after it was
  /// resumed in its own folder. Empty in checkpoints of versions that knew none.
  std::string run;
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

/// 128 random bits as 32 hexadecimal digits. Throws Error(refused) if the system has none to give.
std::string new_run_identity();

/// A line for each fact in which a run differs from the one that was saved, but for the step and the identity: "--lr: 0.001 now,
/// 0.0003 in the checkpoint". Empty: it will go on bit-identically.
std::vector<std::string> differences(const CheckpointState& saved, const CheckpointState& now);

/// `--save DIR`, before ranks start: nothing is made yet. Throws Error(refused) if `dir` can't be written, or if its disk has no
/// room for one checkpoint of the model.
void check_save_folder(const std::filesystem::path& dir, const ModelConfig& config, DType dtype);

/// Which checkpoints a folder holds at a moment: by step, when the manifest of each was written. A run that went back in its own
/// folder and goes on from there doesn't want those that lay ahead of it.
using CheckpointMarks = std::map<std::uint64_t, std::filesystem::file_time_type>;

/// Of `dir` now. Empty if it is no folder, or can't be read.
CheckpointMarks checkpoints_in(const std::filesystem::path& dir);
/// True if `dir`'s checkpoint of that step is still the one that was marked.
bool is_marked(const CheckpointMarks& marks, const std::filesystem::path& dir, std::uint64_t step);

struct SaveOptions {
  /// Checkpoints of this run (of the same `state.run`) that stay, this one included; 0: all. Those of other runs stay, too, and
  /// aren't counted; nor are those whose manifest can't be read.
  std::size_t keep = 0;
  /// Called on rank 0 right before the checkpoint gets its name, which it doesn't if this throws.
  std::function<void()> before_publish = {};
  /// Called on every rank as it begins each part of a save, with its name: a moment to log, or to break.
  std::function<void(std::string_view)> on_part = {};
};

/// Proves, before the first step, that `dir` is one folder for all nodes: rank 0 leaves a file there into which a rank of every
/// other node writes, and reads it again. Collective; does nothing where there is one node. Throws Error(refused) on all ranks:
/// the node that doesn't see the file, or whose bytes don't arrive, and what to do.
void try_shared_folder(Rank& rank, Communicator& ranks, const std::filesystem::path& dir);

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

struct SearchOptions {
  CheckpointMarks passed_over = {};     ///< those that are still the same
  std::optional<std::string> run = {};  ///< only checkpoints of this run; nothing: of any
  bool verify_bytes = true;             ///< read every byte of the files
};

/// `--resume DIR`: the newest whole checkpoint in `dir`, or `dir` itself where it is one. Changes nothing there. Needs no
/// context. Throws Error(refused) if `dir` is no readable folder.
CheckpointSearch search_checkpoints(const std::filesystem::path& dir, const SearchOptions& options = {});

/// The same; throws Error(refused), one line with what was skipped and why, if there is none.
FoundCheckpoint find_checkpoint(const std::filesystem::path& dir, std::vector<std::string>& skipped);

/// What a `--model` folder is found to be.
struct FoundModel {
  std::filesystem::path folder;      ///< with config.json and weights
  std::vector<std::string> skipped;  ///< a line for each newer checkpoint that is damaged
  bool has_manifest = false;         ///< it is a checkpoint
};

/// `--model DIR`: `dir` itself, or, if it is no model folder but holds checkpoints, the newest whole one. The files that hold the
/// model (config.json and model.safetensors) are held against the checkpoint's manifest, to the byte, unless `verify` is false.
/// Folders without a manifest of ours are taken as they are. Throws Error(refused): no such folder, no whole checkpoint in it,
/// files that aren't what the manifest says.
FoundModel find_model_folder(const std::filesystem::path& dir, bool verify);

/// One checkpoint folder. Verifies sizes, and every byte with `verify_bytes`. Throws Error(refused).
FoundCheckpoint open_checkpoint(const std::filesystem::path& folder, bool verify_bytes);

/// Fills the store (parameters, and with training moments and master weights) by all ranks of `ranks`, under any layout. Throws
/// Error(refused) on all ranks: the dtype isn't the store's, a tensor is missing or has another shape, ranks see different
/// checkpoints.
void load_checkpoint(Rank& rank, Communicator& ranks, ParameterStore& store, const FoundCheckpoint& checkpoint);

}  // namespace tsprun
