// `tsprun eval`: the loss of a model on data, and on request its logits. This file is the command; every rank's part is
// eval_rank.h.
#include "launcher/commands/eval_rank.h"

#include "launcher/commands/command.h"
#include "launcher/model/output_file.h"
#include "layers/io/data.h"

#include <filesystem>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

class EvalCommand final : public Command {
 public:
  std::string name() const override { return "eval"; }
  std::string help() const override { return "loss (and, on request, logits) of a model on data"; }
  bool has_trace() const override { return true; }
  void add_options(CLI::App& app) override;
  void validate(const GlobalOptions& global) override;
  Inputs inputs() const override { return model_inputs(model_); }
  int run(const GlobalOptions& global, Report& report) override;

 private:
  ModelCommandOptions model_;
  std::string logits_;
};

void EvalCommand::add_options(CLI::App& app) {
  add_model_options(app, model_);
  app.add_option("--logits", logits_, "write the logits [windows, S, V] to a safetensors file")->type_name("FILE");
}

void EvalCommand::validate(const GlobalOptions& global) {
  validate_model(model_, global);
  validate_data(model_, false);
  validate_memory(model_, global, ModelUse::inference);
  if (logits_.empty()) return;
  std::vector<std::filesystem::path> sources = model_.files;
  sources.emplace_back(model_.config);
  sources.emplace_back(model_.model);
  const double bytes = static_cast<double>(window_count(model_.tokens, model_.sequence)) * static_cast<double>(model_.sequence) *
                       static_cast<double>(model_.shape.vocabulary) * sizeof(float);
  logits_ = check_output("--logits", logits_, bytes, sources);
}

int EvalCommand::run(const GlobalOptions& global, Report& report) {
  report_model(report, model_);
  const Progress::Style style = progress_style(global);
  JobSpec spec;
  spec.global = &global;
  spec.multiplies = true;
  spec.rank_main = [&](Context& context, ReportSink& sink) {
    return eval_rank(context, sink, {.global = &global, .model = &model_, .logits = logits_, .progress = style});
  };
  const int code = run_job(spec, report);
  if (code != 0 && !logits_.empty()) discard_output(logits_);
  return code;
}

}  // namespace

std::unique_ptr<Command> make_eval() { return std::make_unique<EvalCommand>(); }

}  // namespace tsprun::detail::launcher
