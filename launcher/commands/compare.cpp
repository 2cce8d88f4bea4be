// The command `compare`: see compare.h. compare_rank.h is every rank's part, compare_table.cpp makes rows and tables.
#include "launcher/commands/compare.h"

#include "launcher/commands/compare_rank.h"
#include "launcher/model/layouts.h"
#include "launcher/outputs.h"
#include "launcher/refuse.h"
#include "launcher/standard_output.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMostStepsOfAPoint = 1'000'000;
constexpr std::size_t kMostPoints = 10'000;
constexpr ModelOptionUse kCompareUse{};
constexpr ModelOptionUse kSizes{.ranks = false};

std::vector<std::string> split(const std::string& option, const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    std::string part = text.substr(begin, end - begin);
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    if (part.empty())
      refuse(fmt::format("{} {}: part {} is empty; write values between '{}'", option, text, parts.size() + 1, separator));
    parts.push_back(std::move(part));
    begin = end + 1;
  }
  return parts;
}

/// Silences warnings after the first point: those about one configuration are the same for every point.
class QuietAfterFirst {
 public:
  explicit QuietAfterFirst(bool first) : level_(spdlog::get_level()) {
    if (!first) spdlog::set_level(std::max(level_, spdlog::level::err));
  }
  QuietAfterFirst(const QuietAfterFirst&) = delete;
  QuietAfterFirst& operator=(const QuietAfterFirst&) = delete;
  ~QuietAfterFirst() { spdlog::set_level(level_); }

 private:
  spdlog::level::level_enum level_;
};

/// Returns the values of a sweep, or the one value of its plain option.
std::vector<std::string> swept(const std::string& option, const std::string& sweep, const std::string& plain_option,
                               const std::string& plain) {
  if (sweep.empty()) return {plain};
  if (!plain.empty()) refuse(fmt::format("{} {} and {} {}: give one of them", option, sweep, plain_option, plain));
  return split(option, sweep, ',');
}

/// Refuses, before the first job, texts that are no value under any layout.
void check_swept(const std::vector<std::string>& configs, const std::vector<std::string>& sequences,
                 const std::vector<std::string>& batches) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::string& each : configs)
    if (!each.empty()) find_config(each);
  for (const std::string& each : sequences)
    if (!each.empty()) parse_integer("--seq", each, 1, kMost);
  for (const std::string& each : batches)
    if (!each.empty()) parse_integer("--batch", each, 1, kMost);
}

/// Checks that --tp and --sp are variants that exist, and that at least one layout has their axis.
void check_variants(GlobalOptions global, const std::vector<Layout>& layouts) {
  const auto with = [&](AxisKind axis) {
    const auto has = [&](const Layout& layout) { return layout.has(axis); };
    const auto found = std::find_if(layouts.begin(), layouts.end(), has);
    return found == layouts.end() ? layouts.front() : *found;
  };
  global.layout = with(AxisKind::tp);
  tensor_exchange(global);
  global.layout = with(AxisKind::sp);
  sequence_exchange(global);
}

/// Returns a text as a number; `usual` for an empty one. `text` must be a whole number or empty.
std::size_t number_or(const std::string& text, std::size_t usual) {
  return text.empty() ? usual : static_cast<std::size_t>(std::stoull(text));
}

/// Turns a point's texts into values. Throws Error(refused) with the message of a model command that can't run it.
void validate_point(ComparePoint& point, bool forward_only) {
  validate_global(point.global, RankUse::job, 1);
  // The model's sizes first: a layout that can't run still has a row.
  validate_model(point.model, point.global, kSizes);
  validate_model(point.model, point.global, kCompareUse);
  check_batch(point.global, point.model.batch);
  validate_data(point.model, true);
  validate_memory(point.model, point.global, forward_only ? ModelUse::inference : ModelUse::training);
}

/// Writes the table as CSV. Returns why that failed; empty: it succeeded.
std::string write_csv(const std::string& path, const ordered_json& rows) {
  const std::string text = compare_csv(rows);
  if (path == "-") {
    const int error = write_all(lent_standard_output(), text);
    return error == 0 ? std::string() : fmt::format("--csv -: writing the table: {}", std::strerror(error));
  }
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.flush();
  return file ? std::string() : fmt::format("--csv {}: writing the table failed", path);
}

}  // namespace

std::vector<std::string> split_layouts(const std::string& text) { return split("--layouts", text, ';'); }

std::vector<ComparePoint> compare_points(const CompareOptions& options, const ModelCommandOptions& model,
                                         const GlobalOptions& global) {
  const std::vector<std::string> layouts = split_layouts(options.layouts_text);
  const std::vector<std::string> configs = swept("--configs", options.configs_text, "--config", model.config);
  const std::vector<std::string> sequences = swept("--seqs", options.sequences_text, "--seq", model.sequence_text);
  const std::vector<std::string> batches = swept("--batches", options.batches_text, "--batch", model.batch_text);
  std::vector<Layout> parsed;
  for (const std::string& layout : layouts) parsed.push_back(Layout::parse(layout));
  check_variants(global, parsed);
  check_swept(configs, sequences, batches);
  if (layouts.size() * configs.size() * sequences.size() * batches.size() > kMostPoints)
    refuse(fmt::format("--layouts {}: with all sweeps more than {} jobs; give fewer", options.layouts_text, kMostPoints));
  std::vector<ComparePoint> points;
  for (const std::string& config : configs) {
    for (const std::string& batch : batches) {
      for (const std::string& sequence : sequences) {
        for (std::size_t i = 0; i < layouts.size(); ++i) {
          ComparePoint point{.global = global, .model = model, .layout = layouts[i], .why = {}};
          point.global.layout_text = layouts[i];
          point.global.ranks_text.clear();
          // --tp and --sp apply to the layouts that have their axis.
          if (!parsed[i].has(AxisKind::tp)) point.global.tensor_text = "plain";
          if (!parsed[i].has(AxisKind::sp)) point.global.sequence_text = "gather";
          point.global.quiet = true;  // each job's audit becomes a row
          point.model.config = config;
          point.model.batch_text = batch;
          point.model.sequence_text = sequence;
          const QuietAfterFirst quiet(points.empty());
          try {
            validate_point(point, options.forward_only);
          } catch (const Error& error) {
            point.why = error.what();
            // The row shows what was asked for.
            point.global.layout = parsed[i];
            point.global.ranks = parsed[i].ranks();
            point.model.sequence = number_or(sequence, point.model.sequence);
            point.model.batch = number_or(batch, point.model.batch);
          }
          points.push_back(std::move(point));
        }
      }
    }
  }
  return points;
}

void CompareCommand::add_options(CLI::App& app) {
  add_model_options(app, model_, kCompareUse);
  const std::string group = "Compare";
  app.add_option("--layouts", options_.layouts_text, "layouts between semicolons: \"tsp=4;tp=4;tp=2,sp=2\"")
      ->type_name("SPEC[;SPEC...]")
      ->required()
      ->group(group);
  app.add_option("--seqs", options_.sequences_text, "sequence lengths, instead of --seq")->type_name("S[,S...]")->group(group);
  app.add_option("--batches", options_.batches_text, "batches, instead of --batch")->type_name("B[,B...]")->group(group);
  app.add_option("--configs", options_.configs_text, "models, instead of --config")->type_name("NAME[,NAME...]")->group(group);
  app.add_flag("--forward", options_.forward_only, "forward passes only")->group(group);
  app.add_option("--steps", options_.steps_text, "measured steps of each job, after one that isn't")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--csv", options_.csv, "write the table to FILE too; -: to stdout, and everything else to stderr")
      ->type_name("FILE")
      ->group(group);
}

void CompareCommand::validate(const GlobalOptions& global) {
  if (!global.layout_text.empty())
    refuse(fmt::format("--layout {}: compare takes several; try --layouts \"{};…\"", global.layout_text, global.layout_text));
  if (!global.ranks_text.empty()) refuse(fmt::format("-n {}: each of --layouts says how many ranks it has", global.ranks_text));
  if (global.several_machines || !global.nnodes_text.empty())
    refuse(
        fmt::format("--nnodes {}: compare runs on one machine; --nodes K pretends that there are several", global.nnodes_text));
  options_.steps = static_cast<std::uint64_t>(parse_integer("--steps", options_.steps_text, 1, kMostStepsOfAPoint));
  if (!options_.csv.empty() && options_.csv != "-") check_writable("--csv", options_.csv);
  points_ = compare_points(options_, model_, global);
  if (std::all_of(points_.begin(), points_.end(), [](const ComparePoint& point) { return !point.why.empty(); }))
    refuse(points_.front().why);
}

int CompareCommand::run(const GlobalOptions& global, Report& report) {
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
      Report own("");
      JobSpec spec;
      spec.global = &point.global;
      spec.multiplies = true;
      spec.rank_main = [&](Context& context, ReportSink& sink) {
        return compare_rank(
            context, sink,
            {.global = &point.global, .model = &point.model, .steps = options_.steps, .forward_only = options_.forward_only});
      };
      const int code = run_job(spec, own);
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
  }
  for (const std::string& line : compare_table(rows)) print("{}\n", line);
  if (options_.csv.empty()) return worst;
  // The jobs have run, and their rows stay even if the file can't be written.
  if (const std::string trouble = write_csv(options_.csv, rows); !trouble.empty()) {
    spdlog::error("{}", trouble);
    if (worst == 0) report.set_failure(refusal(trouble), {});
    return std::max(worst, 1);
  }
  return worst;
}

std::unique_ptr<Command> make_compare() { return std::make_unique<CompareCommand>(); }

}  // namespace tsprun::detail::launcher
