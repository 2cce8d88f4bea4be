// `tsprun train`: trains a decoder-only model on text, or continues a checkpoint.
//
// This file is the command: its options and what it refuses. Every rank's part is train_rank.h.
#pragma once

#include "launcher/commands/command.h"
#include "launcher/model/model_options.h"
#include "launcher/model/progress.h"
#include "layers/model/model.h"

#include <cstdint>
#include <string>

namespace tsp::launcher {

/// Texts as typed, with defaults, beside the values that validate() makes of them.
struct TrainOptions {
  std::string steps_text = "100";
  std::string learning_rate_text = "3e-4";
  std::string warmup_text = "0";
  std::string weight_decay_text = "0.01";
  std::string beta1_text = "0.9";
  std::string beta2_text = "0.95";
  std::string epsilon_text = "1e-8";
  std::string clip_text = "1.0";

  // Results of validation.
  std::uint64_t steps = 100;
  std::uint64_t warmup = 0;  ///< steps of linear growth, up to the full learning rate
  UpdateOptions update;      ///< with the full learning rate

  /// Of one step, from 1.
  double learning_rate(std::uint64_t step) const;
};

void add_train_options(CLI::App& app, TrainOptions& options);
/// Throws Error(refused).
void validate_train(TrainOptions& options);

class TrainCommand final : public Command {
 public:
  std::string name() const override { return "train"; }
  std::string help() const override { return "train a decoder-only model on text"; }
  bool has_trace() const override { return true; }
  void add_options(CLI::App& app) override;
  void validate(const GlobalOptions& global) override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  ModelCommandOptions model_;
  TrainOptions train_;
};

}  // namespace tsp::launcher
