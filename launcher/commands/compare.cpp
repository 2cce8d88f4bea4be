// The command `compare`: see compare.h. compare_table.cpp makes rows and tables.
#include "launcher/commands/compare.h"

#include "launcher/columns.h"
#include "launcher/commands/compare_reports.h"
#include "launcher/model/audit.h"
#include "launcher/model/layouts.h"
#include "launcher/model/model_rank.h"
#include "launcher/model/session.h"
#include "launcher/model/training_batch.h"
#include "launcher/outputs.h"
#include "launcher/refuse.h"
#include "launcher/signals.h"
#include "launcher/standard_output.h"
#include "layers/io/json_text.h"
#include "layers/parameters/not_finite.h"
#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMostStepsOfAPoint = 1'000'000;
constexpr ModelOptionUse kCompareUse{.micro_batches = true, .audit = false};
constexpr ModelOptionUse kSizes{.micro_batches = true, .ranks = false};

/// Turns a point's texts into values. Throws Error(refused) with the message of a model command that can't run it.
void validate_point(ComparePoint& point, bool forward_only) {
  validate_global(point.global, RankUse::job, 1);
  // The model's sizes first: a layout that can't run still has a row.
  validate_model(point.model, point.global, kSizes);
  validate_model(point.model, point.global, kCompareUse);
  check_batch(point.global, point.model.batch, point.model.micro_batches);
  validate_data(point.model, true);
  validate_memory(point.model, point.global, forward_only ? ModelUse::inference : ModelUse::training);
}

/// Runs the steps of one point; sets `steps` (seconds of each measured one), `per_rank` and `theory` in the report. Every rank
/// runs it.
void run_steps(Context& context, ReportSink& sink, const ComparePoint& point, const CompareOptions& compare) {
  const ModelCommandOptions& options = point.model;
  const bool training = !compare.forward_only;
  Session session(context, sink, point.global);
  Rank& rank = session.rank();
  RunWeights weights(session, options);
  Model model(rank, session.mesh(), model_options(options, training));
  weights.fill(model);
  TrainingBatch batch(options);
  PassesOfRun passes{
      .decisive = {}, .tokens = [&](std::uint64_t step) { return batch.of_step(step); }, .files = !options.model.empty()};

  // The first step isn't measured: it warms up caches and allocates memory for the first time.
  for (std::uint64_t step = 1; step <= compare.steps + 1; ++step) {
    const TokenBatch tokens = batch.of_step(step);
    context.world().barrier();
    if (step == 2) rank.reset_times();
    const std::uint64_t begin = posix::now_ns();
    if (training) {
      model.forward_backward(tokens);
      const double norm = model.gradient_norm();
      if (!std::isfinite(norm)) {
        blame_not_finite(rank, context.world(), model.parameters(),
                         {.what = fmt::format("step {}: the gradients' norm is not finite", step),
                          .advice = "--dtype f64 shows whether numbers outgrew this type",
                          .gradients = true,
                          .run = [&] { model.forward_backward(tokens); }});
      }
      UpdateOptions update;
      update.step = step;
      model.update(update, norm);
    } else {
      model.evaluate(tokens);
    }
    passes.note(step, tokens, model, rank);
    context.world().barrier();
    const double seconds = static_cast<double>(posix::now_ns() - begin) * 1e-9;
    if (session.speaks() && step > 1) sink.append("steps", {{"step", step}, {"seconds", seconds}});
  }

  RankAudit mine{.memory_peak = rank.memory_peaks(), .forward = model.forward_traffic(), .backward = {}, .seconds = rank.times()};
  if (training) mine.backward = model.backward_traffic();
  finish_with_audit(session, mine, options, batch.ids(), training, passes);
}

}  // namespace

std::vector<ComparePoint> compare_points(const CompareOptions& options, const ModelCommandOptions& model,
                                         const GlobalOptions& global) {
  if (options.layouts.empty()) split_layouts(options.layouts);  // which refuses that
  std::vector<ComparePoint> points;
  const spdlog::level::level_enum level = spdlog::get_level();
  for (const SweepPoint& at : sweep_points(options, model, global)) {
    ComparePoint point{.global = global, .model = model, .layout = at.layout, .why = {}};
    take(at, point.global);
    take(at, point.model);
    point.global.inputs.kernels = true;
    point.global.quiet = true;  // each job's audit becomes a row
    // Warnings about one configuration are the same for every point: after the first they are silent.
    if (!points.empty()) spdlog::set_level(std::max(level, spdlog::level::err));
    // A text has the same ids for every point of one model's folder.
    if (!points.empty() && points.front().model.model == point.model.model && points.front().model.config == point.model.config)
      point.model.texts = points.front().model.texts;
    try {
      validate_point(point, options.forward_only);
    } catch (const Error& error) {
      point.why = error.what();
      take(at, point.global);
      point.global.ranks = point.global.layout->ranks();
      show_as_asked(at, point.model);
    }
    points.push_back(std::move(point));
  }
  spdlog::set_level(level);
  return points;
}

void CompareOptions::declare(OptionTable& table) {
  using enum Trait;
  table.group("Compare");
  table.add("FILES", reports, "two reports of --json: nothing is run, and what differs is listed, a line each", reads);
  declare_sweep(table);
  table.add("--forward", forward_only, "forward passes only");
  table.add("--steps N", steps, "measured steps of each job, after one that isn't", Whole{1, kMostStepsOfAPoint});
  table.add("--csv FILE", csv, "write the table to FILE too; -: to stdout, and everything else to stderr", per_node | writes);
}

void CompareCommand::declare(OptionTable& table) {
  model_.declare(table, kCompareUse);
  options_.declare(table);
  for (const OptionRow& row : table.rows()) rows_.push_back(&row);
}

/// Refuses what nobody looks at where two reports are compared.
void CompareCommand::validate_reports(const GlobalOptions& global) const {
  const auto leave_out = [](const std::string& option, const std::string& text) {
    refuse(fmt::format("{}{}{}: two reports are compared as they are; leave it or the files out", option, text.empty() ? "" : " ",
                       text));
  };
  if (global.ranks.given()) leave_out("-n", global.ranks.text);
  if (global.layout.given()) leave_out("--layout", global.layout.text);
  for (const OptionRow* row : rows_) {
    if (row->name() != "FILES" && !row->typed().empty())
      leave_out(row->name(), row->metavar.empty() ? "" : fmt::format("{}", fmt::join(row->typed(), " ")));
  }
  if (options_.reports.size() != 2)
    refuse(fmt::format("compare {}: two reports are compared with each other, such as a.json b.json",
                       fmt::join(options_.reports, " ")));
}

/// Prints how two reports differ.
int CompareCommand::run_reports(Report& report) const {
  const std::string& first = options_.reports[0];
  const std::string& second = options_.reports[1];
  for (const char* key : {"layout", "ranks", "dtype", "transports"}) report.root().erase(key);
  const ordered_json ours = read_report(first);
  const ordered_json theirs = read_report(second);
  const std::vector<ReportDifference> differences = report_differences(ours, theirs);
  ordered_json& rows = report.root()["differences"] = ordered_json::array();
  for (const auto& [what, one, other] : differences)
    rows.push_back({{"what", what},
                    {"first", one.is_string() ? one : ordered_json(one.dump())},
                    {"second", other.is_string() ? other : ordered_json(other.dump())}});
  if (!differences.empty()) print_lines(differences_table(differences, first, second).lines(table_columns()));
  else if (ours == theirs) print("{} and {} say the same\n", printable(first), printable(second));
  else
    print("{} and {} agree in all that is compared: of steps their number, median speed, first and last loss\n", printable(first),
          printable(second));
  return 0;
}

void CompareCommand::validate(const GlobalOptions& global) {
  if (!options_.reports.empty()) {
    validate_reports(global);
    return;
  }
  if (options_.layouts.empty())
    refuse("compare: --layouts SPEC[;SPEC...] is missing, or two reports; `tsprun compare --help` has examples");
  if (global.layout.given())
    refuse(fmt::format("--layout {}: compare takes several; try --layouts \"{};…\"", global.layout.text, global.layout.text));
  if (global.ranks.given()) refuse(fmt::format("-n {}: each of --layouts says how many ranks it has", global.ranks.text));
  if (global.several_machines || !global.nnodes.empty())
    refuse(fmt::format("--nnodes {}: compare runs on one machine; --nodes K pretends that there are several", global.nnodes));
  if (!options_.csv.empty() && options_.csv != "-") check_writable("--csv", options_.csv);
  check_training_options(model_, options_.forward_only);
  points_ = compare_points(options_, model_, global);
  if (std::all_of(points_.begin(), points_.end(), [](const ComparePoint& point) { return !point.why.empty(); }))
    refuse(points_.front().why);
}

int CompareCommand::run(const GlobalOptions& global, Report& report) {
  if (!options_.reports.empty()) return run_reports(report);
  for (const char* key : {"layout", "ranks", "transports"}) report.root().erase(key);  // each row has its own
  report_model(report, points_.front().model);
  for (const char* key : {"batch", "seq"}) report.root().erase(key);
  ordered_json& rows = report.root()["compare"] = ordered_json::array();
  int worst = 0;
  std::size_t done = 0;
  for (const ComparePoint& point : points_) {
    ++done;
    ordered_json job;
    if (point.why.empty()) {
      if (!global.quiet) {
        spdlog::info("{} of {}: {}, {}, batch {}, seq {}", done, points_.size(), point.layout, point.model.shape.name,
                     point.model.batch, point.model.sequence);
      }
      Report own = Report::of_one_job(report);
      own.begin("compare", point.global, true);
      const int code = run_model_job(point.global, own,
                                     [&](Context& context, ReportSink& sink) { run_steps(context, sink, point, options_); });
      job = own.root();
      const bool failed = code != 0 && job.contains("failure") && job["failure"].is_object();
      const bool too_large = failed && job["failure"]["kind"] == "out_of_memory";
      if (code != 0 && !too_large) {
        worst = code;
        report.root()["failure"] = failed ? job["failure"] : ordered_json(nullptr);
      }
      if (failed && job["failure"]["kind"] == "interrupted") {
        rows.push_back(compare_json(point, job, options_.forward_only));
        break;
      }
    }
    rows.push_back(compare_json(point, job, options_.forward_only));
    if (late_signal() != 0) break;
  }
  constexpr std::size_t kMostColumns = 120;
  constexpr std::string_view kLegend =
      "memory: peak MiB of the rank that holds most, beside the forecast of it; received: MiB of all ranks in one step, \"=\": "
      "as forecast to the byte, else measured / forecast; other: norm gains, loss, statistics, both passes; tokens/s: median "
      "step; exposed: the share of its time for which computing waits for others, of the rank that waits least and of that "
      "which waits most";
  print_lines(wrapped(kLegend, std::min(table_columns(), kMostColumns), ""));
  const Table table = compare_table(rows);
  print_lines(table.lines(table_columns()));
  if (options_.csv.empty()) return worst;
  // The jobs have run, and their rows stay even if the file can't be written.
  if (const std::string trouble = write_csv("--csv", options_.csv, table.csv()); !trouble.empty()) {
    spdlog::error("{}", trouble);
    if (worst == 0) report.set_failure(refusal(trouble), {});
    return std::max(worst, 1);
  }
  return worst;
}

std::unique_ptr<Command> make_compare() { return std::make_unique<CompareCommand>(); }

}  // namespace tsprun::detail::launcher
