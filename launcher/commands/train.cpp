// The command `train`: checks before it begins, and restarts after failures.
#include "launcher/commands/train.h"

#include "core/kernels/level.h"
#include "launcher/model/layouts.h"
#include "launcher/model/memory_need.h"
#include "launcher/model/session.h"
#include "launcher/model/trace_writer.h"
#include "launcher/processes.h"
#include "launcher/refuse.h"
#include "layers/checkpoints/checkpoint_folder.h"
#include "layers/layout/check_layout.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <system_error>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

constexpr int kFailedAgain = 1;

/// Keeps the trace of a failed attempt, which the next attempt would overwrite, under another name: "t.json" as
/// "t.attempt-1.json". Returns that name; null: there is no trace.
nlohmann::ordered_json keep_trace(const GlobalOptions& global, std::uint64_t number) {
  std::filesystem::path kept = global.trace;
  const std::string ending = is_gzip_name(global.trace) ? ".gz" : "";
  const std::filesystem::path name = ending.empty() ? kept.filename() : kept.stem();
  kept.replace_filename(fmt::format("{}.attempt-{}{}{}", name.stem().string(), number, name.extension().string(), ending));
  std::error_code error;
  if (global.trace.empty() || ranks_here(global).first != 0 || !std::filesystem::is_regular_file(global.trace, error))
    return nullptr;
  std::filesystem::rename(global.trace, kept, error);
  if (error) return nullptr;
  return kept.string();
}

/// Removes a list from the report and returns it; empty if there is none.
nlohmann::ordered_json take_list(Report& report, const char* key) {
  nlohmann::ordered_json list = report.root().value(key, nlohmann::ordered_json::array());
  report.root().erase(key);
  return list;
}

/// Returns why a job with this failure would fail again; empty: it may not. An injected oom strikes only once, so it isn't
/// hopeless.
std::string why_hopeless(const nlohmann::ordered_json& failure, const std::vector<fault::Spec>& faults, std::uint64_t struck) {
  const auto is = [&](Cause cause) { return failure.at("kind") == std::string(tsprun::name(cause)); };
  if (is(Cause::refused)) return "what was refused would be refused again";
  if (is(Cause::interrupted)) return "the job was interrupted";
  if (failure.contains("asked_to_end_by"))
    return fmt::format("tsprun got {} meanwhile", signal_name(failure.at("asked_to_end_by").get<int>()));
  if (!is(Cause::out_of_memory)) return {};
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (faults[i].kind == fault::Kind::oom && (struck >> i & 1) != 0 && failure.at("rank") == faults[i].rank) return {};
  }
  return "what didn't fit into memory would not fit again; try a larger --mem-per-rank, more ranks or a smaller --batch";
}

}  // namespace

void TrainCommand::declare(OptionTable& table) {
  model_.declare(table, kTrainUse);
  train_.declare(table);
}

void TrainCommand::validate(const GlobalOptions& global) {
  find_resumed(train_, model_);
  validate_train(train_, model_.dtype);
  if (train_.log_every.given() && global.quiet)
    refuse(fmt::format("--log-every {}: --quiet prints no lines of steps; leave one of them out", train_.log_every.text));
  validate_model(model_, global, kTrainUse);
  check_batch(global, model_.batch, model_.micro_batches);
  validate_data(model_, true);
  count_steps(train_, model_);
  if (!train_.eval_data.empty()) validate_evaluation(global);
  validate_memory(model_, global, ModelUse::training);
  check_training_need(model_, global, train_.resumed ? train_.resumed->state.step : 0, train_.steps, !train_.save.empty(),
                      evaluated_ ? &*evaluated_ : nullptr);
  check_trace_steps(global.trace_options, "train", train_.resumed ? train_.resumed->state.step + 1 : 1, train_.steps);
  if (!train_.save.empty()) validate_save();
  if (!train_.resumed) return;
  const CheckpointState& saved = train_.resumed->state;
  const CheckpointState now = checkpoint_state(train_, model_, global, {}, global.kernel_level, saved.step);
  for (const std::string& line : differences(saved, now)) spdlog::warn("{}: {}", train_.resumed->folder.string(), line);
}

/// Opens the validation data, and checks that the layout can evaluate.
void TrainCommand::validate_evaluation(const GlobalOptions& global) {
  if (const std::string why = why_only_trained(layout_of(global)); !why.empty()) {
    refuse(fmt::format("--eval-data {}: {}; or leave it out, and evaluate checkpoints by `tsprun eval`", train_.eval_data.front(),
                       why));
  }
  evaluated_ = model_;
  evaluated_->data = train_.eval_data;
  evaluated_->batch = model_.batch / model_.micro_batches;  // as many at once as training has
  evaluated_->texts.clear();
  try {
    validate_data(*evaluated_, false);
  } catch (const Error& error) {
    throw Error(error.cause(), fmt::format("--eval-data: {}", error.what()));
  }
}

/// Checks that a checkpoint fits into the folder, reads what it takes over from the model's folder, and checks that the folder is
/// this run's: other runs' checkpoints there are refused unless they may be overwritten.
void TrainCommand::validate_save() {
  try {
    check_save_folder(train_.save, model_.shape, model_.dtype);
  } catch (const Error& error) {
    if (!train_.saves_unasked) throw;
    throw Error(error.cause(),
                fmt::format("{}; a resumed run saves in its own folder unless --save names another", error.what()));
  }
  if (!model_.source.empty()) {
    source_ = read_model_source(model_.source);
    for (const std::string& warning : source_->warnings) spdlog::warn("{}", warning);
  }
  folder_.emplace(train_.save, train_.resumed);
  if (const std::optional<std::uint64_t> newest = folder_->others(); newest && !train_.overwrite) {
    refuse(
        fmt::format("--save {}: holds checkpoints of another run, up to step {}; name another folder, go on with that run by "
                    "--resume {}, or give --overwrite, and they are deleted once this run has saved",
                    train_.save, *newest, train_.save));
  }
}

Inputs TrainCommand::inputs() const {
  Inputs inputs = model_inputs(model_);
  for (const std::string& file : train_.eval_data) inputs.files.push_back({"--eval-data", file});
  return inputs;
}

int TrainCommand::run_once(const GlobalOptions& global, Report& report) {
  const ProgressLine::Style style = progress_style(global);
  WindDown* const wind_down = wind_down_ ? &*wind_down_ : nullptr;
  const TrainPlan plan{.global = &global,
                       .model = &model_,
                       .train = &train_,
                       .evaluated = evaluated_ ? &*evaluated_ : nullptr,
                       .progress = style,
                       .folder = folder_ ? &*folder_ : nullptr,
                       .source = source_ ? &*source_ : nullptr,
                       .wind_down = wind_down};
  return run_job({.global = &global,
                  .rank_main = [&](Context& context, ReportSink& sink) { train_rank(context, sink, plan); },
                  .wind_down = wind_down,
                  .trouble = trouble_,
                  .steps = report.steps()},
                 report);
}

/// Says after a failure, or an end before the last step, where the run can go on, and with which command.
void TrainCommand::say_what_survives(const GlobalOptions& global, Report& report) const {
  if (!folder_ || ranks_here(global).first != 0) return;
  const std::optional<FoundCheckpoint> saved = folder_->survivor();
  const std::optional<FoundCheckpoint>& left = saved ? saved : train_.resumed;
  if (!left) {
    spdlog::warn("nothing was saved: no checkpoint of this run is in {}", train_.save);
    return;
  }
  if (left->state.step >= train_.steps) return;
  // The newest checkpoint in the run's own folder is the right one; of another run's folder only the checkpoint that was resumed.
  const std::string command = resume_command(global.words, saved ? train_.save : left->folder.string());
  spdlog::warn("{} holds the run after {} of {} steps; it goes on with: {}", left->folder.string(), left->state.step,
               train_.steps, command);
  report.root()["survivor"] = {{"folder", left->folder.string()}, {"step", left->state.step}, {"command", command}};
}

/// Returns true if the job may be started again: the failure may not repeat, and there is a checkpoint of this run, or the one
/// that it resumed, from which train_.resumed then goes on. `struck`: a bit for each fault that struck this attempt. `skipped`:
/// set to a line for each newer checkpoint that is damaged.
bool TrainCommand::may_restart(const Report& report, const std::vector<fault::Spec>& faults, std::uint64_t struck,
                               std::vector<std::string>& skipped) {
  const auto failure = report.root().find("failure");
  if (failure == report.root().end() || !failure->is_object()) return false;
  std::string why = why_hopeless(*failure, faults, struck);
  if (why.empty() && wind_down_ && wind_down_->asked() != 0) why = "the job was interrupted";
  if (!why.empty()) {
    spdlog::error("no restart: {}", why);
    return false;
  }
  try {
    const CheckpointSearch search = folder_->own_checkpoints();
    skipped = search.skipped;
    warn_of_skipped(skipped);
    if (search.found) train_.resumed = search.found;
    if (!train_.resumed) {
      spdlog::error("no restart: the run has no {}checkpoint in {} yet; --save-every K with a smaller K writes them sooner",
                    skipped.empty() ? "" : "whole ", train_.save);
      return false;
    }
    if (train_.resumed->state.step < train_.steps) return true;
    spdlog::error("no restart: all {} steps are done, and {} holds them", train_.steps, train_.resumed->folder.string());
    return false;
  } catch (const Error& error) {
    spdlog::error("no restart: {}", error.what());
    return false;
  }
}

int TrainCommand::run(const GlobalOptions& global, Report& report) {
  using nlohmann::ordered_json;
  report_model(report, model_);
  report.root()["micro_batches"] = model_.micro_batches.value;
  report.begin_steps();
  if (!train_.skipped.empty()) report.root()["skipped_checkpoints"] = train_.skipped;
  if (folder_) {
    wind_down_.emplace(train_.save_within * 1'000'000'000, train_.save_on);
    if (ranks_here(global).first == 0) report.root()["run"] = folder_->run();
    try {
      folder_->lease(global);
    } catch (const Error& error) {
      if (!global.several_machines) throw;
      trouble_ = error.what();
    }
  }
  ordered_json attempts = ordered_json::array();  // those that failed, and how each ended
  for (std::uint64_t restarts = 0;; ++restarts) {
    GlobalOptions attempt = global;
    attempt.struck_faults = report.struck_faults();
    attempt.attempt = restarts;
    if (restarts > 0) attempt.inputs.files.clear();  // nodes compared them before the first attempt
    attempt.typed["the checkpoint to go on from"] =
        train_.resumed ? fmt::format("of step {} ({:.8})", train_.resumed->state.step, train_.resumed->checksum) : "none";
    bool begun = true;
    int code = kFailedAgain;
    try {
      code = run_once(attempt, report);
    } catch (const Error& error) {
      // Earlier attempts have run: the job has failed, it wasn't refused.
      if (restarts == 0) throw;
      begun = false;
      fmt::print(stderr, "tsprun: restart {} of {} couldn't begin: {}\n", restarts, train_.max_restarts, error.what());
      report.set_failure(failure_of(error), {});
    }
    if (train_.max_restarts > 0) {
      report.root()["restarts"] = restarts;
      report.root()["attempts"] = attempts;
    }
    std::vector<std::string> skipped;
    const std::uint64_t struck = report.struck_faults() & ~attempt.struck_faults;
    if (code == 0) return code;
    if (!begun || restarts >= train_.max_restarts || !may_restart(report, global.faults.values, struck, skipped)) {
      say_what_survives(global, report);
      return code;
    }

    spdlog::warn("restart {} of {}, from {}", restarts + 1, train_.max_restarts, train_.resumed->folder.string());
    if (StepList* steps = report.steps()) steps->keep_up_to(train_.resumed->state.step);
    if (const auto found = report.root().find("evaluations"); found != report.root().end())
      std::erase_if(found->get_ref<ordered_json::array_t&>(),
                    [&](const ordered_json& each) { return each.at("step") > train_.resumed->state.step; });
    attempts.push_back({{"failure", report.root().at("failure")},
                        {"trace", keep_trace(global, restarts + 1)},
                        {"resumed_from", train_.resumed->folder.string()},
                        {"skipped", skipped},
                        {"checkpoints", take_list(report, "checkpoints")}});
    report.root()["failure"] = nullptr;
  }
}

std::unique_ptr<Command> make_train() { return std::make_unique<TrainCommand>(); }

}  // namespace tsprun::detail::launcher
