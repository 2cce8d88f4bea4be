// `tsprun plan`: calculates about layouts without starting a rank. It prints Tables II to IV for a model and its layouts; with
// --paper the paper's equations beside exact counts; with --tasks what a rank does in a step, in order; with --search which
// layouts of N GPUs fit, and how fast they would be.
#include "launcher/columns.h"
#include "launcher/commands/command.h"
#include "launcher/model/layouts.h"
#include "launcher/model/model_options.h"
#include "launcher/plan/paper_tables.h"
#include "launcher/plan/points.h"
#include "launcher/refuse.h"
#include "launcher/standard_output.h"
#include "launcher/table.h"
#include "layers/layout/check_layout.h"
#include "layers/schedules/pipeline.h"
#include "layers/schedules/tasks.h"
#include "layers/theory/machine.h"
#include "layers/theory/remarks.h"
#include "layers/theory/search.h"
#include "layers/theory/simulate.h"
#include "transport/cause.h"
#include "transport/factory.h"
#include "transport/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

constexpr std::int64_t kMostGpus = kMostRanksOnPaper;
constexpr std::chrono::seconds kBetweenLines{2};  // of a search
constexpr ModelOptionUse kPlanUse{
    .files = false, .seed = false, .micro_batches = true, .ranks = false, .documents = true, .beyond = true};

/// The options of `plan`, each with its default.
struct PlanOptions {
  bool paper = false;
  bool tasks = false;
  Given<PipelineSchedule> pipeline{PipelineSchedule::one_forward_one_backward};
  bool search = false;
  Given<int> gpus{1};
  Given<std::uint64_t> memory{0};
  std::string machine;
  Given<std::size_t> top{20};
  Given<std::size_t> simulate{0};
};

std::uint64_t parse_memory(const std::string& option, const std::string& text) {
  const std::uint64_t bytes = parse_size(option, text);
  if (bytes == 0) refuse(fmt::format("{} {}: nothing fits into that; try {} 80G", option, text, option));
  return bytes;
}

class PlanCommand final : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "plan",
            .help = "memory, traffic and FLOPs of layouts on paper; which fit a memory budget",
            .examples = {"tsprun plan --config paper-7b --dtype bf16 --seq 32768 -n 8",
                         "tsprun plan --search --gpus 64 --machine mi300x --config paper-7b --dtype bf16 --seq 131072"},
            .ranks = RankUse::on_paper};
  }
  void declare(OptionTable& table) override;
  void validate(const GlobalOptions& global) override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void refuse_ignored(const GlobalOptions& global) const;
  void refuse_layouts(const GlobalOptions& global) const;
  std::uint64_t memory_of_a_gpu(const GlobalOptions& global) const;
  void validate_search();
  int run_search(Report& report, const GlobalOptions& global) const;
  std::vector<std::string> task_lines() const;
  void play_fastest(std::span<const theory::Candidate> found, nlohmann::ordered_json& rows, const GlobalOptions& global) const;

  ModelCommandOptions model_;
  PlanOptions options_;
  Layout layout_;
  PlanQuestion question_;
};

void PlanCommand::declare(OptionTable& table) {
  using enum Trait;
  model_.declare(table, kPlanUse);
  table["--recompute"].help += "; --search without it chooses by layout";
  table.group("Plan");
  table.add("--paper", options_.paper, "the paper's equations (1) to (30) beside exact counts, and where they differ");
  table.add(
      "--tasks", options_.tasks,
      "what each rank does in a training step of --micro-batches M, in order, a line for each task; of --layout pp=2,… what "
      "each stage does");
  table.add("--pipeline ORDER", options_.pipeline,
            "with --tasks: in which order a pipeline's stages do their tasks: {}; train does 1f1b",
            Choice<PipelineSchedule>{{{"1f1b", PipelineSchedule::one_forward_one_backward}, {"gpipe", PipelineSchedule::gpipe}}});
  table.add("--search", options_.search,
            "every layout of --gpus, with the recomputation that suits it: which fit, by modelled step time");
  table.add("--gpus N", options_.gpus, "with --search: how many GPUs", Whole{1, kMostGpus}, computed);
  table.add("--mem SIZE", options_.memory, "memory of a GPU, such as 192G; default: the machine's", parse_memory, computed);
  table.add("--machine NAME|FILE", options_.machine,
            fmt::format("what the GPUs and their links can do: {}, or a JSON file", fmt::join(theory::machine_names(), ", ")),
            Trait::reads);
  table.add("--top K", options_.top, "with --search: layouts that are printed of each kind; 0: all", Whole{0, kMostGpus});
  table.add("--simulate K", options_.simulate, "with --search: play the K fastest that fit in virtual time, as `simulate` does",
            Whole{0, kMostGpus});
}

/// Refuses options that choose a layout, since a search chooses the layouts itself.
void PlanCommand::refuse_layouts(const GlobalOptions& global) const {
  const auto leave_out = [](const std::string& option, const std::string& text) {
    refuse(fmt::format("{} {}: --search goes over every layout of --gpus with all variants; leave it out", option, text));
  };
  if (global.ranks.given()) leave_out("-n", global.ranks.text);
  if (global.layout.given()) leave_out("--layout", global.layout.text);
  for (const AxisRow& row : kAxes) {
    if (global.variant(row.kind) != 0) leave_out(fmt::format("--{}", row.name), global.variant(row.kind).text);
  }
}

/// Refuses options of which the answer that is asked for knows nothing.
void PlanCommand::refuse_ignored(const GlobalOptions& global) const {
  const bool played = options_.search && options_.simulate != 0;
  if (global.reassociate && !played)
    refuse("--reassociate: it orders the sums of steps that are played; leave it out, or give --search --simulate 3");
  if (!options_.paper && !options_.tasks && !options_.search) return;
  const auto no_place_for = [&](std::string_view option, bool is_given, const std::string& text) {
    if (!is_given) return;
    refuse(fmt::format("{} {}: {}", option, text,
                       options_.paper ? "the paper's equations have no place for it; leave out either it or --paper"
                       : options_.tasks
                           ? "the list of tasks doesn't depend on it; leave out either it or --tasks"
                           : "a search is among the GPUs of --machine; leave it out, or plan one layout with --layout"));
  };
  if (options_.paper || options_.tasks) {
    no_place_for("--machine", !options_.machine.empty(), options_.machine);
    no_place_for("--mem", options_.memory.given(), options_.memory.text);
    no_place_for("--mem-per-rank", global.mem_per_rank.given(), global.mem_per_rank.text);
    no_place_for("TSP_ALGORITHMS", !global.algorithms.empty(), global.algorithms);
    no_place_for("--recompute", model_.recompute.given(), model_.recompute.text);
    no_place_for("--documents", !model_.documents.empty(), model_.documents);
  }
  if (options_.paper) {
    no_place_for("--micro-batches", model_.micro_batches.given(), model_.micro_batches.text);
    for (const AxisRow& row : kAxes)
      no_place_for(fmt::format("--{}", row.name), global.variant(row.kind).given(), global.variant(row.kind).text);
  }
  no_place_for("--nodes", global.nodes.given(), global.nodes.text);
  no_place_for("--threads", global.threads.given(), global.threads.text);
  no_place_for("--intra", global.intra.given(), global.intra.text);
}

/// Returns the memory of a GPU: --mem, else --mem-per-rank, else the machine's; 0: none is known.
std::uint64_t PlanCommand::memory_of_a_gpu(const GlobalOptions& global) const {
  if (options_.memory.given() && global.mem_per_rank.given()) {
    refuse(fmt::format("--mem {} and --mem-per-rank {}: they say the same; give one of them", options_.memory.text,
                       global.mem_per_rank.text));
  }
  if (options_.memory != 0) return options_.memory;
  if (global.mem_per_rank != 0) return global.mem_per_rank;
  return question_.machine ? static_cast<std::uint64_t>(question_.machine->memory_bytes) : 0;
}

void PlanCommand::validate_search() {
  if (options_.tasks && (options_.paper || options_.search))
    refuse(fmt::format("--tasks {}: they are two answers; give one of them", options_.paper ? "--paper" : "--search"));
  if (options_.pipeline.given() && !options_.tasks)
    refuse(fmt::format("--pipeline {}: it goes with --tasks", options_.pipeline.text));
  if (!options_.search) {
    if (options_.simulate.given()) refuse(fmt::format("--simulate {}: it goes with --search", options_.simulate.text));
    if (options_.top.given()) refuse(fmt::format("--top {}: it goes with --search", options_.top.text));
    if (options_.gpus.given()) refuse(fmt::format("--gpus {}: it goes with --search; -n N plans N ranks", options_.gpus.text));
    return;
  }
  if (options_.paper) refuse("--search --paper: they are two tables; give one of them");
  if (!options_.gpus.given()) refuse("--search: among how many GPUs? try --gpus 8");
  if (options_.machine.empty()) {
    refuse(fmt::format("--search: on what machine? --machine {} or a file work", fmt::join(theory::machine_names(), ", ")));
  }
}

void PlanCommand::validate(const GlobalOptions& global) {
  validate_search();
  refuse_ignored(global);
  // The default is the paper's own model.
  if (options_.paper && model_.config.empty() && model_.model.empty()) {
    model_.config = "paper-7b";
    if (!model_.dtype.given()) model_.dtype.text = "bf16";
    if (!model_.sequence.given()) model_.sequence.text = "8192";
  }
  validate_model(model_, global, kPlanUse);
  question_.setting = model_.setting();
  question_.dtype = model_.dtype;
  if (options_.search) refuse_layouts(global);
  layout_ = layout_of(global);
  if (options_.tasks) {
    if (const std::string why = why_uncut(question_.setting, layout_); !why.empty()) refuse(why);
    if (options_.pipeline.given() && layout_.stages() == 1) {
      refuse(
          fmt::format("--pipeline {}: --layout {} has no pipeline; try --layout pp=2", options_.pipeline.text, layout_.print()));
    }
  }
  if (global.nodes > layout_.ranks())
    refuse(fmt::format("--nodes {}: it spreads the ranks of -n or --layout, and neither is given", global.nodes.text));
  if (!options_.machine.empty()) {
    question_.machine = theory::find_machine(options_.machine);
    if (question_.machine->cores)
      refuse(fmt::format("--machine {}: it describes cores, on which simulate can play; plan needs GPUs", options_.machine));
    if (!question_.machine->flops(model_.dtype)) {
      refuse(fmt::format("--dtype {}: {} doesn't state flops_per_s for it", tsprun::name(model_.dtype.value), options_.machine));
    }
  }
  question_.memory_bytes = memory_of_a_gpu(global);
  if (global.inter != bootstrap::Demand::automatic)
    refuse(fmt::format("--inter {}: a plan knows no network; leave it out", global.inter.text));
  if (!global.rdma.empty()) refuse(fmt::format("--rdma {}: a plan uses no device; leave it out", global.rdma));
  question_.threads = static_cast<std::size_t>(std::max(1, global.threads.value));
  question_.nodes = global.nodes;
  question_.share = within_node(global.intra).views;
  question_.algorithms = global.algorithms;
  if (options_.search && !model_.recompute.given()) {
    question_.modes = {Recompute::none, Recompute::selective, Recompute::full};
  }
}

/// Returns what tells how far a search is, every two seconds.
std::function<void(std::size_t, std::size_t)> tells_of_search() {
  return [last = std::chrono::steady_clock::now()](std::size_t done, std::size_t total) mutable {
    if (std::chrono::steady_clock::now() - last < kBetweenLines) return;
    last = std::chrono::steady_clock::now();
    spdlog::info("{} of {} layouts judged", done, total);
  };
}

/// Plays the fastest layouts in virtual time, and prints them in that order. `found`: the layouts of `rows`, which get the time.
void PlanCommand::play_fastest(std::span<const theory::Candidate> found, nlohmann::ordered_json& rows,
                               const GlobalOptions& global) const {
  struct Played {
    const theory::Candidate* candidate;
    theory::Simulated step;
  };
  std::vector<Played> all;
  std::vector<std::string> remarks;
  for (std::size_t i = 0; i < found.size() && found[i].fits && all.size() < options_.simulate; ++i) {
    const theory::Candidate& each = found[i];
    if (const int unit = theory::unit_of(each.layout, *question_.machine); unit > theory::kMostPlayed) {
      remarks.push_back(
          fmt::format("{}: {} ranks would be played, and {} are the most", each.layout.label(), unit, theory::kMostPlayed));
      continue;
    }
    if (!global.quiet) spdlog::info("playing {} of {}: {}", all.size() + 1, options_.simulate, each.layout.label());
    Setting setting = question_.setting;
    setting.recompute = each.recompute;
    all.push_back({&each, theory::simulate({.setting = setting, .layout = each.layout}, *question_.machine,
                                           {.binds = true,
                                            .algorithms = global.algorithms,
                                            .reassociate = global.reassociate || question_.machine->adds_by_rails(),
                                            .threads = static_cast<std::size_t>(machine::usable_cores())})});
    const theory::Simulated& step = all.back().step;
    for (const std::string& few : {theory::layers_remark(step.layers, setting.model.layers, step.layers_difference),
                                   theory::ranks_remark(step.played, each.layout.ranks(), step.ranks_difference)}) {
      if (!few.empty()) remarks.push_back(fmt::format("{}: {}", each.layout.label(), few));
    }
    rows[i]["simulated_seconds"] = all.back().step.seconds;
    rows[i]["simulated_exposed_seconds"] = all.back().step.exposed_seconds;
    rows[i]["simulated_binds"] = all.back().step.binds;
  }
  std::ranges::stable_sort(all, {}, [](const Played& played) { return played.step.seconds; });
  Table table({{"played in virtual time", Align::left},
               {"recompute", Align::right, "", true},
               "ms a step",
               "modelled ms",
               "exposed ms",
               {"bound by", Align::left}});
  for (const Played& played : all) {
    table.row({played.candidate->layout.label(), recompute_name(played.candidate->recompute),
               fmt::format("{:.2f}", 1e3 * played.step.seconds), fmt::format("{:.2f}", 1e3 * played.candidate->time.seconds),
               fmt::format("{:.2f}", 1e3 * played.step.exposed_seconds), played.step.binds});
  }
  print("\n");
  print_lines(table.lines(table_columns()));
  print_lines(remarks);
}

/// Runs the search and prints it. If nothing fits, the reason is printed last and put into the report.
int PlanCommand::run_search(Report& report, const GlobalOptions& global) const {
  theory::SearchOptions how = question_.search_options();
  if (!global.quiet) how.progress = tells_of_search();
  const std::vector<theory::Candidate> found = theory::search(question_.setting, options_.gpus, *question_.machine, how);
  std::vector<PlanPoint> points;
  nlohmann::ordered_json& rows = report.root()["plan"] = nlohmann::ordered_json::array();
  for (const theory::Candidate& each : found) {
    points.push_back(plan_point(question_, each));
    rows.push_back(plan_json(question_, points.back()));
  }
  print_lines(search_table(question_, points, options_.top, table_columns()));
  if (options_.simulate != 0) {
    show_printed();
    play_fastest(found, rows, global);
  }
  if (const auto remedies = theory::remedies(question_.setting, found, *question_.machine, question_.search_options())) {
    print_lines(remedy_lines(question_, *remedies, table_columns()));
    report.root()["would_fit"] = remedy_json(*remedies);
  }
  return 0;
}

/// Returns the tasks of a step, a line for each. All ranks of a stage do the same; of several stages each has a line before.
std::vector<std::string> PlanCommand::task_lines() const {
  const auto stages = static_cast<std::size_t>(layout_.stages());
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < stages; ++i) {
    const PipelineStage stage = PipelineStage::of(question_.setting.model.layers, stages, i);
    if (stages > 1) lines.push_back(fmt::format("stage {}", i));
    std::istringstream text(print(training_tasks(options_.pipeline, stage, question_.setting.micro_batches)));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
  }
  return lines;
}

int PlanCommand::run(const GlobalOptions& global, Report& report) {
  report_model(report, model_);
  if (options_.paper) {
    const bool typed = global.ranks.given() || global.layout.given();
    if (const std::string why = why_only_trained(layout_); typed && !why.empty()) refuse(why);
    const PaperTables tables(question_, typed ? layout_ : Layout::tsp(kPaperRanks));
    print_lines(tables.lines(table_columns()));
    report.root()["paper"] = tables.json();
    return 0;
  }
  if (options_.tasks) {
    const std::vector<std::string> lines = task_lines();
    print_lines(lines);
    report.root()["tasks"] = lines;
    return 0;
  }
  if (options_.search) {
    if (!question_.modes.empty()) report.root()["recompute"] = "auto";
    return run_search(report, global);
  }
  std::vector<PlanPoint> points;
  nlohmann::ordered_json& rows = report.root()["plan"] = nlohmann::ordered_json::array();
  for (const Layout& layout : peers_of(layout_)) {
    points.push_back(plan_point(question_, layout));
    rows.push_back(plan_json(question_, points.back()));
  }
  print_lines(plan_tables(question_, points, table_columns()));
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_plan() { return std::make_unique<PlanCommand>(); }

}  // namespace tsprun::detail::launcher
