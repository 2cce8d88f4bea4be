// The options of `train`, and their relation to checkpoints: which of them a checkpoint keeps, what a resumed run takes from it,
// and in what a run differs from the saved one.
#pragma once

#include "launcher/model/model_options.h"
#include "launcher/option_table.h"
#include "launcher/options.h"
#include "layers/checkpoints/checkpoint.h"
#include "layers/model/model.h"
#include "layers/parameters/learning_rate.h"

#include <csignal>
#include <cstddef>
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
  Given<double> epochs{0};            ///< 0: as many steps as --steps says
  Given<double> learning_rate{3e-4};  ///< after the warm-up
  Given<std::uint64_t> warmup{0};
  Given<RateSchedule> schedule{RateSchedule::constant};
  Given<double> least_rate{0};
  Given<std::uint64_t> decay_steps{0};  ///< 0: as many as LearningRate::default_decay() says
  Given<double> weight_decay{0.01};
  Given<double> beta1{0.9};
  Given<double> beta2{0.95};
  Given<double> epsilon{1e-8};
  Given<double> clip{1.0};
  std::string save;                    ///< folder of checkpoints; empty: none
  Given<std::uint64_t> save_every{0};  ///< steps between checkpoints; 0: one at the end
  Given<std::size_t> keep{0};
  bool overwrite = false;  ///< other runs' checkpoints in `save` are deleted once this run has saved
  std::string resume;      ///< a checkpoint, or a folder of them
  Given<std::uint64_t> save_within{25};
  Given<int> save_on{SIGUSR2};  ///< the signal on which a checkpoint is saved, and the run goes on
  Given<std::uint64_t> max_restarts{0};
  std::vector<std::string> eval_data;  ///< files of validation data; empty: nothing is evaluated
  Given<std::uint64_t> eval_every{0};  ///< steps between evaluations; 0: one at the end
  Given<std::uint64_t> log_every{0};   ///< steps between lines; 0: the clock says when

  // Values derived during validation, not given on the command line.
  std::optional<FoundCheckpoint> resumed;
  std::vector<std::string> skipped;  ///< a line for each newer checkpoint that --resume passed over as damaged
  bool saves_unasked = false;        ///< `save` wasn't typed and is the folder of --resume

  /// Adds the rows of the options.
  void declare(OptionTable& table);
  /// Returns the learning rates of the run's steps.
  LearningRate rates() const;
  /// Returns AdamW's settings of one step, counted from 1.
  UpdateOptions update(std::uint64_t step) const;
  /// Returns true if an evaluation is due after `step`.
  bool evaluates_after(std::uint64_t step) const;
  /// Returns true if a checkpoint is due after `step`.
  bool saves_after(std::uint64_t step) const;
};

/// Finds the checkpoint of --resume, and takes every option from it that wasn't typed. --save is among them: a run goes on in its
/// own folder. If --resume and --save name the same folder and it has no checkpoint yet, a new run begins there. Call before the
/// other validations. Throws Error(refused).
void find_resumed(TrainOptions& options, ModelCommandOptions& model);
/// Warns of checkpoints that were passed over, because they are damaged or half replaced: a line for each.
void warn_of_skipped(const std::vector<std::string>& skipped);
/// Checks the options together, for a model in `dtype`. Throws Error(refused).
void validate_train(const TrainOptions& options, DType dtype);
/// Calculates the steps of --epochs, if they are given, for windows of the data that are known now, and checks what depends on
/// the number of steps. Throws Error(refused).
void count_steps(TrainOptions& options, ModelCommandOptions& model);
/// Returns what a checkpoint after `step` records about the run.
CheckpointState checkpoint_state(const TrainOptions& options, const ModelCommandOptions& model, const GlobalOptions& global,
                                 const std::string& run, kernels::Level level, std::uint64_t step);

/// Returns a line for each fact in which a run differs from the saved one, except step and identity: "--lr: 0.001 now, 0.0003 in
/// the checkpoint". If there is none, the run continues bit-identically.
std::vector<std::string> differences(const CheckpointState& saved, const CheckpointState& now);

}  // namespace tsprun::detail::launcher
