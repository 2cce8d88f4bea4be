// `tsprun train`: trains a decoder-only model on text, or continues from a checkpoint.
//
// This file has the command's options and checks. What each rank does is in train_rank.h.
#pragma once

#include "launcher/commands/command.h"
#include "launcher/commands/run_folder.h"
#include "launcher/model/model_options.h"
#include "launcher/model/progress.h"
#include "launcher/wind_down.h"
#include "layers/checkpoints/checkpoint.h"
#include "layers/model/model.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// Options of `train`. Members named …_text hold what was typed; validate_train() sets the parsed values below. In a run that
/// goes on from a checkpoint, options that weren't typed have the checkpoint's values, otherwise their defaults.
struct TrainOptions {
  std::string steps_text = "100";
  std::string learning_rate_text;
  std::string warmup_text;
  std::string weight_decay_text;
  std::string beta1_text;
  std::string beta2_text;
  std::string epsilon_text;
  std::string clip_text;
  std::string save;  ///< folder of checkpoints; empty: none
  std::string save_every_text;
  std::string keep_text = "0";
  std::string resume;  ///< a checkpoint, or a folder of them
  std::string max_restarts_text = "0";
  std::string save_within_text = "25";

  // Results of validation.
  std::uint64_t steps = 100;
  std::uint64_t warmup = 0;      ///< steps in which the learning rate grows linearly to its full value
  UpdateOptions update;          ///< AdamW's options, with the full learning rate
  std::uint64_t save_every = 0;  ///< steps between checkpoints; 0: one at the end
  std::size_t keep = 0;          ///< number of newest checkpoints to keep; 0: all
  std::uint64_t max_restarts = 0;
  std::optional<FoundCheckpoint> resumed;
  std::vector<std::string> skipped;  ///< a line for each newer checkpoint that --resume passed over as damaged
  bool saves_unasked = false;        ///< `save` wasn't typed and is the folder of --resume
  std::uint64_t save_within_ns = 0;  ///< how long SIGINT and SIGTERM wait for a last checkpoint; 0: not at all

  /// Returns the learning rate of one step, counted from 1.
  double learning_rate(std::uint64_t step) const;
  /// Returns true if a checkpoint is due after `step`.
  bool saves_after(std::uint64_t step) const;
};

/// Declares the options on a command.
void add_train_options(CLI::App& app, TrainOptions& options);
/// Finds the checkpoint of --resume, and takes every option from it that wasn't typed. --save is among them: a run goes on in its
/// own folder. If --resume and --save name the same folder and it has no checkpoint yet, a new run begins there. Call before the
/// other validations. Throws Error(refused).
void find_resumed(TrainOptions& options, ModelCommandOptions& model);
/// Parses and checks the options. Throws Error(refused).
void validate_train(TrainOptions& options);
/// Returns what a checkpoint after `step` records about the run.
CheckpointState checkpoint_state(const TrainOptions& options, const ModelCommandOptions& model, const GlobalOptions& global,
                                 const std::string& run, std::string_view kernels, std::uint64_t step);

/// The command `train`, with its restarts after failures.
class TrainCommand final : public Command {
 public:
  std::string name() const override { return "train"; }
  std::string help() const override { return "train a decoder-only model on text"; }
  bool has_trace() const override { return true; }
  bool has_steps() const override { return true; }
  void add_options(CLI::App& app) override;
  void validate(const GlobalOptions& global) override;
  Inputs inputs() const override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void validate_save();
  int run_once(const GlobalOptions& global, Report& report);
  bool may_restart(const Report& report, const std::vector<fault::Spec>& faults, std::uint64_t struck,
                   std::vector<std::string>& skipped);
  void say_what_survives(const GlobalOptions& global, Report& report) const;

  ModelCommandOptions model_;
  TrainOptions train_;
  std::optional<RunFolder> folder_;  ///< the folder of --save; empty: nothing is saved
  std::optional<WindDown> wind_down_;
  std::string trouble_;  ///< why this tsprun can't start the job, to be told to other nodes
};

}  // namespace tsprun::detail::launcher
