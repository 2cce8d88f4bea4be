// The command `train`: see train.h.
#include "launcher/commands/train.h"

#include "launcher/commands/train_rank.h"

#include <algorithm>
#include <limits>

namespace tsp::launcher {

namespace {
constexpr std::int64_t kMostSteps = 1'000'000'000;
}

double TrainOptions::learning_rate(std::uint64_t step) const {
  if (step >= warmup) return update.learning_rate;
  return update.learning_rate * static_cast<double>(step) / static_cast<double>(warmup);
}

void add_train_options(CLI::App& app, TrainOptions& options) {
  const std::string group = "Training";
  const auto add = [&](const char* name, std::string& text, const char* type, const char* help) {
    app.add_option(name, text, help)->type_name(type)->capture_default_str()->group(group);
  };
  add("--steps", options.steps_text, "N", "steps in all");
  add("--lr", options.learning_rate_text, "RATE", "learning rate");
  add("--warmup", options.warmup_text, "N", "steps in which the learning rate grows from 0, linearly; constant afterwards");
  add("--weight-decay", options.weight_decay_text, "X", "of matrices only");
  add("--beta1", options.beta1_text, "X", "AdamW's");
  add("--beta2", options.beta2_text, "X", "AdamW's");
  add("--eps", options.epsilon_text, "X", "AdamW's");
  add("--clip", options.clip_text, "X", "largest global gradient norm; 0: none");
}

void validate_train(TrainOptions& options) {
  constexpr double kMost = 1e6;
  options.steps = static_cast<std::uint64_t>(parse_integer("--steps", options.steps_text, 1, kMostSteps));
  options.warmup = static_cast<std::uint64_t>(parse_integer("--warmup", options.warmup_text, 0, kMostSteps));
  UpdateOptions& update = options.update;
  update.learning_rate = parse_number("--lr", options.learning_rate_text, {.lowest = 0, .highest = kMost, .usual = 3e-4});
  update.weight_decay = parse_number("--weight-decay", options.weight_decay_text, {.lowest = 0, .highest = kMost, .usual = 0.01});
  update.beta1 = parse_number("--beta1", options.beta1_text, {.lowest = 0, .highest = 1, .usual = 0.9, .below = true});
  update.beta2 = parse_number("--beta2", options.beta2_text, {.lowest = 0, .highest = 1, .usual = 0.95, .below = true});
  update.epsilon = parse_number("--eps", options.epsilon_text, {.lowest = 0, .highest = 1, .usual = 1e-8, .open = true});
  update.clip = parse_number("--clip", options.clip_text, {.lowest = 0, .highest = kMost, .usual = 1});
}

void TrainCommand::add_options(CLI::App& app) {
  add_model_options(app, model_);
  add_train_options(app, train_);
}

void TrainCommand::validate(const GlobalOptions& global) {
  validate_train(train_);
  validate_model(model_, global);
  validate_data(model_, true);
  validate_memory(model_, global, ModelUse::training);
}

int TrainCommand::run(const GlobalOptions& global, Report& report) {
  report_model(report, model_);
  const Progress::Style style = progress_style(global);
  JobSpec spec;
  spec.global = &global;
  spec.rank_main = [&](Context& context, ReportSink& sink) {
    return train_rank(context, sink, {.global = &global, .model = &model_, .train = &train_, .progress = style});
  };
  return run_job(spec, report);
}

std::unique_ptr<Command> make_train() { return std::make_unique<TrainCommand>(); }

}  // namespace tsp::launcher
