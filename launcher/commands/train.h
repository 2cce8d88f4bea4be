// `tsprun train`: trains a decoder-only model on text, or continues a checkpoint.
//
// This file is the command: its options and what it refuses. Every rank's part is train_rank.h.
#pragma once

#include "launcher/commands/command.h"
#include "launcher/commands/run_folder.h"
#include "launcher/model/model_options.h"
#include "launcher/model/progress.h"
#include "launcher/wind_down.h"
#include "layers/model/checkpoint.h"
#include "layers/model/model.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::launcher {

/// Texts as typed beside the values that validate_train() makes of them. What isn't typed is the checkpoint's in a run that goes
/// on from one, else the default.
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
  std::uint64_t warmup = 0;      ///< steps of linear growth, up to the full learning rate
  UpdateOptions update;          ///< with the full learning rate
  std::uint64_t save_every = 0;  ///< steps between checkpoints; 0: one at the end
  std::size_t keep = 0;          ///< checkpoints that stay; 0: all
  std::uint64_t max_restarts = 0;
  std::optional<FoundCheckpoint> resumed;
  std::vector<std::string> skipped;  ///< by --resume: a line for each newer checkpoint that is damaged
  bool saves_unasked = false;        ///< `save` is the folder of --resume, for nobody named one
  std::uint64_t save_within_ns = 0;  ///< that SIGINT and SIGTERM wait for a last checkpoint; 0: not at all

  /// Of one step, from 1.
  double learning_rate(std::uint64_t step) const;
  /// After `step` a checkpoint is due.
  bool saves_after(std::uint64_t step) const;
};

void add_train_options(CLI::App& app, TrainOptions& options);
/// Finds the checkpoint of --resume, and lets its facts stand for whatever wasn't typed, --save among it: a run goes on in its
/// own folder. A folder that holds nothing yet begins a new run if --save names it, too. Before the other validations. Throws
/// Error(refused).
void find_resumed(TrainOptions& options, ModelCommandOptions& model);
/// Throws Error(refused).
void validate_train(TrainOptions& options);
/// What a checkpoint after `step` says of the run.
CheckpointState checkpoint_state(const TrainOptions& options, const ModelCommandOptions& model, const GlobalOptions& global,
                                 const std::string& run, std::string_view kernels, std::uint64_t step);

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
  std::optional<RunFolder> folder_;  ///< --save's
  std::optional<WindDown> wind_down_;
  std::string trouble_;  ///< why this tsprun can't begin, for the nodes of other machines
};

}  // namespace tsprun::launcher
