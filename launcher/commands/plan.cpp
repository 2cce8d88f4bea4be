// `tsprun plan`: calculates about layouts without starting a rank. It prints Tables II to IV for a model and its layouts; with
// --paper the paper's equations beside exact counts; with --search which layouts of N GPUs fit, and how fast they would be.
#include "launcher/commands/command.h"
#include "launcher/model/layouts.h"
#include "launcher/model/model_options.h"
#include "launcher/plan/paper_tables.h"
#include "launcher/plan/points.h"
#include "launcher/refuse.h"
#include "launcher/standard_output.h"
#include "layers/theory/machine.h"
#include "layers/theory/search.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

constexpr std::int64_t kMostGpus = kMostRanksOnPaper;
constexpr std::size_t kUsualTop = 20;
constexpr ModelOptionUse kPlanUse{.files = false, .seed = false, .ranks = false};

struct PlanOptions {
  bool paper = false;
  bool search = false;
  std::string gpus_text;
  std::string memory_text;
  std::string machine_text;
  std::string top_text = std::to_string(kUsualTop);

  // Results of validation.
  int gpus = 1;
  std::size_t top = kUsualTop;
  Layout layout;
};

class PlanCommand final : public Command {
 public:
  std::string name() const override { return "plan"; }
  std::string help() const override { return "memory, traffic and FLOPs of layouts on paper; which fit a memory budget"; }
  RankUse rank_use() const override { return RankUse::on_paper; }
  void add_options(CLI::App& app) override;
  void validate(const GlobalOptions& global) override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void refuse_layouts(const GlobalOptions& global) const;
  std::uint64_t memory_of_a_gpu(const GlobalOptions& global) const;
  void validate_search();
  std::vector<PlanPoint> points() const;
  int run_search(Report& report) const;

  ModelCommandOptions model_;
  CLI::Option* recompute_ = nullptr;
  PlanOptions options_;
  PlanQuestion question_;
};

void print_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) print("{}\n", line);
}

void PlanCommand::add_options(CLI::App& app) {
  add_model_options(app, model_, kPlanUse);
  recompute_ = app.get_option("--recompute");
  recompute_->description(recompute_->get_description() + "; --search without it chooses by layout");
  const std::string group = "Plan";
  app.add_flag("--paper", options_.paper, "the paper's equations (1) to (30) beside exact counts, and where they differ")
      ->group(group);
  app.add_flag("--search", options_.search,
               "every layout of --gpus, with the recomputation that suits it: which fit, by modelled step time")
      ->group(group);
  app.add_option("--gpus", options_.gpus_text, "with --search: how many GPUs")->type_name("N")->group(group);
  app.add_option("--mem", options_.memory_text, "memory of a GPU, such as 192G; default: the machine's")
      ->type_name("SIZE")
      ->group(group);
  app.add_option(
         "--machine", options_.machine_text,
         fmt::format("what the GPUs and their links can do: {}, or a JSON file", fmt::join(theory::machine_names(), ", ")))
      ->type_name("NAME|FILE")
      ->group(group);
  app.add_option("--top", options_.top_text, "with --search: layouts that are printed of each kind; 0: all")
      ->type_name("K")
      ->capture_default_str()
      ->group(group);
}

/// Refuses options that choose a layout, since a search chooses the layouts itself.
void PlanCommand::refuse_layouts(const GlobalOptions& global) const {
  const auto leave_out = [](const std::string& option, const std::string& text) {
    refuse(fmt::format("{} {}: --search goes over every layout of --gpus with all variants; leave it out", option, text));
  };
  if (!global.ranks_text.empty()) leave_out("-n", global.ranks_text);
  if (!global.layout_text.empty()) leave_out("--layout", global.layout_text);
  if (global.tensor_text != "plain") leave_out("--tp", global.tensor_text);
  if (global.sequence_text != "gather") leave_out("--sp", global.sequence_text);
}

/// Returns the memory of a GPU: --mem, else --mem-per-rank, else the machine's; 0: none is known.
std::uint64_t PlanCommand::memory_of_a_gpu(const GlobalOptions& global) const {
  if (!options_.memory_text.empty() && !global.mem_per_rank_text.empty()) {
    refuse(fmt::format("--mem {} and --mem-per-rank {}: they say the same; give one of them", options_.memory_text,
                       global.mem_per_rank_text));
  }
  if (!options_.memory_text.empty()) {
    const std::uint64_t bytes = parse_size("--mem", options_.memory_text);
    if (bytes == 0) refuse(fmt::format("--mem {}: nothing fits into that; try --mem 80G", options_.memory_text));
    return bytes;
  }
  if (global.mem_per_rank != 0) return global.mem_per_rank;
  return question_.machine ? static_cast<std::uint64_t>(question_.machine->memory_bytes) : 0;
}

void PlanCommand::validate_search() {
  if (!options_.search) {
    if (!options_.gpus_text.empty())
      refuse(fmt::format("--gpus {}: it goes with --search; -n N plans N ranks", options_.gpus_text));
    return;
  }
  if (options_.paper) refuse("--search --paper: they are two tables; give one of them");
  if (options_.gpus_text.empty()) refuse("--search: among how many GPUs? try --gpus 8");
  options_.gpus = static_cast<int>(parse_integer("--gpus", options_.gpus_text, 1, kMostGpus));
  if (!question_.machine) {
    refuse(fmt::format("--search: on what machine? --machine {} or a file work", fmt::join(theory::machine_names(), ", ")));
  }
}

void PlanCommand::validate(const GlobalOptions& global) {
  // The default is the paper's own model.
  if (options_.paper && model_.config.empty() && model_.model.empty()) {
    model_.config = "paper-7b";
    if (model_.dtype_text.empty()) model_.dtype_text = "bf16";
    if (model_.sequence_text.empty()) model_.sequence_text = "8192";
  }
  validate_model(model_, global, kPlanUse);
  question_.setting = model_.setting();
  question_.dtype = model_.dtype;
  options_.top = static_cast<std::size_t>(parse_integer("--top", options_.top_text, 0, kMostGpus));
  if (options_.search) refuse_layouts(global);
  options_.layout = layout_of(global);
  if (!options_.machine_text.empty()) {
    question_.machine = theory::find_machine(options_.machine_text);
    if (!question_.machine->flops(model_.dtype)) {
      refuse(fmt::format("--dtype {}: {} doesn't state flops_per_s for it", tsprun::name(model_.dtype), options_.machine_text));
    }
  }
  question_.memory_bytes = memory_of_a_gpu(global);
  question_.threads = static_cast<std::size_t>(std::max(1, global.threads));
  question_.nodes = global.nodes;
  question_.share = global.intra != "tcp";
  if (options_.search && recompute_->count() == 0) {
    question_.modes = {Recompute::none, Recompute::selective, Recompute::full};
  }
  validate_search();
}

/// Runs the search and prints it. If nothing fits, the reason is printed last and put into the report.
int PlanCommand::run_search(Report& report) const {
  const std::vector<theory::Candidate> found =
      theory::search(question_.setting, options_.gpus, *question_.machine, question_.search_options());
  std::vector<PlanPoint> points;
  nlohmann::ordered_json& rows = report.root()["plan"] = nlohmann::ordered_json::array();
  for (const theory::Candidate& each : found) {
    points.push_back(plan_point(question_, each));
    rows.push_back(plan_json(question_, points.back()));
  }
  print_lines(search_table(question_, points, options_.top));
  if (const auto remedies = theory::remedies(question_.setting, found, *question_.machine, question_.search_options())) {
    print_lines(remedy_lines(question_, *remedies));
    report.root()["would_fit"] = remedy_json(*remedies);
  }
  return 0;
}

std::vector<PlanPoint> PlanCommand::points() const {
  std::vector<PlanPoint> points;
  for (const Layout& layout : peers_of(options_.layout)) points.push_back(plan_point(question_, layout));
  return points;
}

int PlanCommand::run(const GlobalOptions& global, Report& report) {
  report_model(report, model_);
  if (options_.paper) {
    const bool typed = !global.ranks_text.empty() || !global.layout_text.empty();
    const PaperTables tables(question_, typed ? options_.layout : Layout::tsp(kPaperRanks));
    print_lines(tables.lines());
    report.root()["paper"] = tables.json();
    return 0;
  }
  if (options_.search) {
    if (!question_.modes.empty()) report.root()["recompute"] = "auto";
    return run_search(report);
  }
  const std::vector<PlanPoint> all = points();
  nlohmann::ordered_json& rows = report.root()["plan"] = nlohmann::ordered_json::array();
  for (const PlanPoint& point : all) rows.push_back(plan_json(question_, point));
  print_lines(plan_tables(question_, all));
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_plan() { return std::make_unique<PlanCommand>(); }

}  // namespace tsprun::detail::launcher
