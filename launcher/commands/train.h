// `tsprun train`: trains a decoder-only model on text, or continues from a checkpoint.
//
// train.cpp has the command's options and checks, train_rank.cpp what each rank does.
#pragma once

#include "launcher/commands/command.h"
#include "launcher/commands/run_folder.h"
#include "launcher/model/model_options.h"
#include "launcher/model/progress.h"
#include "launcher/report_sink.h"
#include "launcher/wind_down.h"
#include "layers/checkpoints/checkpoint.h"
#include "layers/model/model.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// The options of `train`, each with its default. In a run that goes on from a checkpoint, options that weren't typed have the
/// checkpoint's values.
struct TrainOptions {
  Given<std::uint64_t> steps{100};
  Given<double> learning_rate{3e-4};  ///< after the warm-up
  Given<std::uint64_t> warmup{0};
  Given<double> weight_decay{0.01};
  Given<double> beta1{0.9};
  Given<double> beta2{0.95};
  Given<double> epsilon{1e-8};
  Given<double> clip{1.0};
  std::string save;                    ///< folder of checkpoints; empty: none
  Given<std::uint64_t> save_every{0};  ///< steps between checkpoints; 0: one at the end
  Given<std::size_t> keep{0};
  std::string resume;  ///< a checkpoint, or a folder of them
  Given<std::uint64_t> save_within{25};
  Given<std::uint64_t> max_restarts{0};

  // Values derived during validation, not given on the command line.
  std::optional<FoundCheckpoint> resumed;
  std::vector<std::string> skipped;  ///< a line for each newer checkpoint that --resume passed over as damaged
  bool saves_unasked = false;        ///< `save` wasn't typed and is the folder of --resume

  /// Adds the rows of the options.
  void declare(OptionTable& table);
  /// Returns AdamW's settings of one step, counted from 1.
  UpdateOptions update(std::uint64_t step) const;
  /// Returns true if a checkpoint is due after `step`.
  bool saves_after(std::uint64_t step) const;
};

/// Finds the checkpoint of --resume, and takes every option from it that wasn't typed. --save is among them: a run goes on in its
/// own folder. If --resume and --save name the same folder and it has no checkpoint yet, a new run begins there. Call before the
/// other validations. Throws Error(refused).
void find_resumed(TrainOptions& options, ModelCommandOptions& model);
/// Checks the options together. Throws Error(refused).
void validate_train(const TrainOptions& options);
/// Returns what a checkpoint after `step` records about the run.
CheckpointState checkpoint_state(const TrainOptions& options, const ModelCommandOptions& model, const GlobalOptions& global,
                                 const std::string& run, std::string_view kernels, std::uint64_t step);

/// Returns a line for each fact in which a run differs from the saved one, except step and identity: "--lr: 0.001 now, 0.0003 in
/// the checkpoint". If there is none, the run continues bit-identically.
std::vector<std::string> differences(const CheckpointState& saved, const CheckpointState& now);

/// Arguments of train_rank(). Pointers are borrowed.
struct TrainPlan {
  const GlobalOptions* global;
  const ModelCommandOptions* model;
  const TrainOptions* train;
  Progress::Style progress;
  const RunFolder* folder;  ///< the folder of --save; null: nothing is saved
  WindDown* wind_down;      ///< tells when to save and end early; null: never
};

/// Trains, prints progress and the audit, sets `steps`, `loss`, `per_rank` and `theory` in the report. Returns the exit code. A
/// run that is asked to end saves, and returns 0 without an audit.
int train_rank(Context& context, ReportSink& sink, const TrainPlan& plan);

/// The command `train`, with its restarts after failures.
class TrainCommand final : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "train",
            .help = "train a decoder-only model on text",
            .examples =
                {"tsprun -n 4 train --config nano --data book.txt --batch 8 --steps 700 --lr 3e-3 --save runs/book",
                 "tsprun --layout tp=2,sp=2 --sp ring train --resume runs/book --data book.txt --steps 1400 --save runs/book"},
            .has_trace = true,
            .has_steps = true};
  }
  void declare(OptionTable& table) override;
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
