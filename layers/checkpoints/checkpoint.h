// Training checkpoints: everything that a run needs to continue bit-identically, in a folder that is also a Hugging Face model
// folder.
//
//   DIR/step-000120/
//     config.json                 the model, in Hugging Face's format, with all fields of the file that the run began with
//     model.safetensors           its weights, in its dtype: whole tensors, Hugging Face's names
//     optimizer.m.safetensors     first moments, by the same names
//     optimizer.v.safetensors     second moments
//     optimizer.master.safetensors  f32 weights, if the model is bf16
//     tokenizer.json, …           files of the model folder that the run began with (model_source.h)
//     manifest.json               written last: facts about the run; size and checksum of every other file
//
// Files hold whole tensors in natural order and don't depend on the layout, so a run can continue with any layout and any number
// of ranks.
//
//   save    all ranks write DIR/step-000120.partial/, which is synced, then renamed. A folder without that suffix is whole.
//   search  in the launcher, before ranks start: newest first; sizes and checksums are verified
//   load    all ranks, each its slices
//
// If one rank fails, every rank throws the same Error, and no rank waits for one that gave up.
#pragma once

#include "core/rank/rank.h"
#include "layers/checkpoints/model_source.h"
#include "layers/io/config.h"
#include "layers/layout/layout.h"
#include "layers/parameters/learning_rate.h"
#include "layers/parameters/parameter_store.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Facts about a run besides its model and its weights. A run that continues with the same facts continues bit-identically.
struct CheckpointState {
  /// Identity of the run, 32 hexadecimal digits (see new_run_identity()). It is the same in all checkpoints of a run, also after
  /// the run was resumed in its own folder. Empty in checkpoints of versions that had no identities.
  std::string run;
  std::uint64_t step = 0;  ///< number of updates done; the next is step + 1
  std::uint64_t seed = 0;
  DType dtype = DType::f32;  ///< dtype of the parameters

  // Fields that, with the seed and the step, determine which tokens a step sees.
  std::size_t batch = 1;
  std::size_t sequence = 1;
  std::uint64_t data_tokens = 0;     ///< tokens in the stream of data
  double epochs = 0;                 ///< that the run reads, each window once in each; 0: windows begin anywhere
  std::string end_of_document = {};  ///< the token behind each text of the data, as it was typed; empty: there was none
  bool reset_attention = false;      ///< attention and positions don't cross ends of documents

  // Settings of the update.
  double learning_rate = 3e-4;
  std::uint64_t warmup = 0;  ///< number of warm-up steps
  RateSchedule schedule = RateSchedule::constant;
  double least_rate = 0;          ///< where the schedule ends
  std::uint64_t decay_steps = 0;  ///< in which the rate falls; 0: as many as LearningRate::default_decay() says
  std::uint64_t steps = 0;        ///< of the whole run; 0 with a constant rate, which doesn't depend on it
  double weight_decay = 0.01;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double clip = 1.0;

  // With other values of what follows a run continues the same loss curve, but only within rounding.
  std::size_t micro_batches = 1;  ///< parts of each data rank's sequences, whose gradients add up
  Layout layout = Layout::tsp(1);
  std::string kernels;  ///< "avx512"

  bool operator==(const CheckpointState&) const = default;
};

/// Returns 128 random bits as 32 hexadecimal digits. Throws Error(refused) if the system call fails.
std::string new_run_identity();

/// Checks `--save DIR` before ranks start, without creating anything. Throws Error(refused) if `dir` can't be written, or if its
/// disk has no room for one checkpoint of the model.
void check_save_folder(const std::filesystem::path& dir, const ModelConfig& config, DType dtype);

/// The checkpoints that a folder held at some moment: for each step, when its manifest was written. A run that went back to an
/// earlier checkpoint in its own folder passes over the later ones that it marked this way.
using CheckpointMarks = std::map<std::uint64_t, std::filesystem::file_time_type>;

/// Returns the checkpoints that `dir` holds now; empty if it isn't a folder or can't be read.
CheckpointMarks checkpoints_in(const std::filesystem::path& dir);
/// Returns whether the checkpoint of that step in `dir` is still the one that was marked.
bool is_marked(const CheckpointMarks& marks, const std::filesystem::path& dir, std::uint64_t step);

/// Settings and callbacks of save_checkpoint().
struct SaveOptions {
  /// Number of checkpoints of this run (with the same `state.run`) to keep, this one included; 0: all. Checkpoints of other runs,
  /// and those whose manifest can't be read, are neither counted nor deleted.
  std::size_t keep = 0;
  /// Files and fields that the checkpoint takes over from the model folder that the run began with. Used on rank 0; borrowed;
  /// null: none.
  const ModelSource* source = nullptr;
  /// Callback on rank 0 right before the checkpoint gets its name. If it throws, the save fails and the name isn't given.
  std::function<void()> before_publish = {};
  /// Callback on every rank with the name of each part of a save as that part begins, for logging and for injected faults.
  std::function<void(std::string_view)> on_part = {};
};

/// Checks, before the first step, that `dir` is the same folder on all nodes: rank 0 creates a file there, one rank of every
/// other node writes into it, and rank 0 reads it. Collective; does nothing on one node. Throws Error(refused) on all ranks with
/// the node that doesn't see the file or whose bytes don't arrive, and what to do.
void try_shared_folder(Rank& rank, Communicator& ranks, const std::filesystem::path& dir);

/// Result of save_checkpoint().
struct SavedCheckpoint {
  std::filesystem::path folder;       ///< "DIR/step-000120"
  std::uint64_t bytes = 0;            ///< bytes of all files; set on rank 0
  std::vector<std::string> warnings;  ///< on rank 0: an old checkpoint that couldn't be deleted
};

/// Writes DIR/step-NNNNNN. Collective over `ranks`, which together hold every part of the model and pass the same arguments.
/// Removes leftovers of interrupted saves first and old checkpoints beyond `keep` last. Replaces a checkpoint of the same step.
/// Requires a store made for training, finite parameters and moments, and a folder that all ranks see. Throws Error(refused) on
/// all ranks if any rank can't write (a full disk, say), and leaves existing checkpoints as they were.
SavedCheckpoint save_checkpoint(Rank& rank, Communicator& ranks, const ParameterStore& store, const ModelConfig& config,
                                const CheckpointState& state, const std::filesystem::path& dir, const SaveOptions& options = {});

/// A checkpoint whose manifest has been read.
struct FoundCheckpoint {
  std::filesystem::path folder;
  ModelConfig config;
  CheckpointState state;
  std::string checksum;                 ///< checksum of the manifest and so of all files: XXH3-128, 32 hexadecimal digits
  std::vector<std::string> warnings{};  ///< a line for each carried file that isn't as it was saved
};

/// Result of search_checkpoints().
struct CheckpointSearch {
  std::optional<FoundCheckpoint> found;  ///< the newest whole checkpoint
  std::vector<std::string> skipped;      ///< a line for each newer one, damaged or half replaced: what and why
};

/// Options of search_checkpoints(): which checkpoints it considers, and what it verifies.
struct CheckpointSearchOptions {
  CheckpointMarks passed_over = {};     ///< checkpoints to pass over while is_marked() holds for them
  std::optional<std::string> run = {};  ///< only checkpoints of this run, or with an unreadable manifest; absent: any
  bool verify_bytes = true;             ///< read all files and compare their checksums
};

/// Finds what `--resume DIR` continues: the newest whole checkpoint in `dir`, or `dir` itself if it is one. Changes nothing
/// there. Needs no context. Throws Error(refused) if `dir` isn't a readable folder.
CheckpointSearch search_checkpoints(const std::filesystem::path& dir, const CheckpointSearchOptions& options = {});

/// Returns the newest whole checkpoint as search_checkpoints() finds it, and sets `skipped` to a line for each newer one that is
/// damaged. Throws Error(refused) with one line that says what was skipped and why if there is none.
FoundCheckpoint find_checkpoint(const std::filesystem::path& dir, std::vector<std::string>& skipped);

/// The folder that a `--model` argument leads to.
struct FoundModel {
  std::filesystem::path folder;      ///< the folder with config.json and weights
  std::vector<std::string> skipped;  ///< a line for each newer checkpoint that is damaged
  bool has_manifest = false;         ///< the folder has a manifest.json, which marks a checkpoint
};

/// Finds the folder of `--model DIR`: `dir` itself, or, if it isn't a model folder but holds checkpoints, the newest whole one.
/// Unless `verify` is false, sizes and checksums of the files that hold the model (config.json and model.safetensors) are
/// compared with the checkpoint's manifest. Folders without a manifest of tsprun are accepted as they are. Throws Error(refused):
/// no such folder, no whole checkpoint in it, or files that differ from the manifest.
FoundModel find_model_folder(const std::filesystem::path& dir, bool verify);

/// Opens one checkpoint folder. Verifies the sizes of its files and the shapes and types of their tensors, and with
/// `verify_bytes` all checksums. Files that checkpoints only carry along may differ; `warnings` says so. Throws Error(refused).
FoundCheckpoint open_checkpoint(const std::filesystem::path& folder, bool verify_bytes);

/// Fills the store from a checkpoint: parameters, and with training also moments and master weights. Collective over `ranks`,
/// under any layout. Throws Error(refused) on all ranks: the dtype isn't the store's, a tensor is missing or has another shape,
/// or nodes see different checkpoints.
void load_checkpoint(Rank& rank, Communicator& ranks, ParameterStore& store, const FoundCheckpoint& checkpoint);

}  // namespace tsprun::detail
