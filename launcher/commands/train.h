// `tsprun train`: trains a decoder-only model on text, or continues from a checkpoint.
//
// train_options.h has the command's options, train.cpp its checks and restarts, train_rank.cpp what each rank does.
#pragma once

#include "launcher/commands/command.h"
#include "launcher/commands/run_folder.h"
#include "launcher/commands/train_options.h"
#include "launcher/model/model_options.h"
#include "launcher/model/progress.h"
#include "launcher/report_sink.h"
#include "launcher/wind_down.h"
#include "layers/checkpoints/model_source.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Arguments of train_rank(). Pointers are borrowed.
struct TrainPlan {
  const GlobalOptions* global;
  const ModelCommandOptions* model;
  const TrainOptions* train;
  const ModelCommandOptions* evaluated;  ///< the model's options with the files of --eval-data; null: nothing is evaluated
  ProgressLine::Style progress;
  const RunFolder* folder;    ///< the folder of --save; null: nothing is saved
  const ModelSource* source;  ///< what checkpoints take over from the model's folder; null: nothing
  WindDown* wind_down;        ///< tells when to save and end early; null: never
};

/// Trains, prints progress and the audit, sets `steps`, `evaluations`, `loss`, `per_rank` and `theory` in the report. A run that
/// is asked to end saves, and returns without an audit.
void train_rank(Context& context, ReportSink& sink, const TrainPlan& plan);

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
            .has_profile = true,
            .has_steps = true};
  }
  void declare(OptionTable& table) override;
  void validate(const GlobalOptions& global) override;
  Inputs inputs() const override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void validate_evaluation(const GlobalOptions& global);
  void validate_save();
  int run_once(const GlobalOptions& global, Report& report);
  bool may_restart(const Report& report, const std::vector<fault::Spec>& faults, std::uint64_t struck,
                   std::vector<std::string>& skipped);
  void say_what_survives(const GlobalOptions& global, Report& report) const;

  ModelCommandOptions model_;
  TrainOptions train_;
  std::optional<ModelCommandOptions> evaluated_;  ///< the model's options with the files of --eval-data
  std::optional<RunFolder> folder_;               ///< the folder of --save; empty: nothing is saved
  std::optional<ModelSource> source_;             ///< what checkpoints take over from the model's folder; empty: nothing
  std::optional<WindDown> wind_down_;
  std::string trouble_;  ///< why this tsprun can't start the job, to be told to other nodes
};

}  // namespace tsprun::detail::launcher
