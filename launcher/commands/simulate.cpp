// `tsprun simulate`: how long a step would take on a cluster that isn't there. Schedules are recorded on phantom ranks and played
// in virtual time, on a machine that a file describes.
#include "launcher/commands/simulate.h"

#include "launcher/columns.h"
#include "launcher/commands/command.h"
#include "launcher/exports/exports.h"
#include "launcher/model/layouts.h"
#include "launcher/model/measured.h"
#include "launcher/model/output_file.h"
#include "launcher/model/sweep.h"
#include "launcher/model/trace_file.h"
#include "launcher/outputs.h"
#include "launcher/refuse.h"
#include "launcher/standard_output.h"
#include "layers/layout/check_layout.h"
#include "transport/cause.h"
#include "transport/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

constexpr ModelOptionUse kSimulateUse{.model_folder = false,
                                      .files = false,
                                      .seed = false,
                                      .micro_batches = true,
                                      .swept = true,
                                      .ranks = false,
                                      .documents = true,
                                      .beyond = true};
constexpr std::int64_t kMostSimulatedSteps = 1000;
constexpr double kMostFactor = 1e6;
constexpr double kMostHostMicroseconds = 1e6;

/// The options of `simulate`, each with its default.
struct SimulateCommandOptions : SweepOptions {
  std::string machine;
  Given<int> gpus{1};
  Given<int> steps{1};
  std::string attention;
  std::string elementwise = "fused";
  Given<double> host_us{0};
  bool forward = false;
  bool blocking = false;
  std::string fold = "on";
  std::string sums = "auto";
  std::vector<std::string> slow;
  std::string against;
  std::string csv;
  std::vector<std::string> exports;
};

class SimulateCommand final : public Command {
 public:
  CommandFacts facts() const override {
    return {
        .name = "simulate",
        .help = "the time of a step on a cluster that isn't there, from the schedules themselves",
        .examples = {"tsprun simulate --machine mi300x --gpus 64 --layout dp=8,tsp=8 --config paper-7b --dtype bf16 --batch 8",
                     "tsprun simulate --machine h100 --layouts 'tsp=8;tp=8;sp=8' --config paper-7b --dtype bf16 --csv steps.csv"},
        .ranks = RankUse::on_paper,
        .has_trace = true};
  }
  void declare(OptionTable& table) override;
  void validate(const GlobalOptions& global) override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void choose_attention();
  void refuse_ignored(const GlobalOptions& global) const;
  void read_slow(const std::string& text);
  SimulatePoint point_at(const SweepPoint& at, const GlobalOptions& global) const;
  theory::Simulated play(const SimulatePoint& point, const GlobalOptions& global) const;
  bool adds_by_rails(const GlobalOptions& global) const;
  void check(const SimulatePoint& point) const;
  void take_measured(const GlobalOptions& global);

  ModelCommandOptions model_;
  SimulateCommandOptions options_;
  std::vector<SimulatePoint> points_;
  std::vector<theory::SlowRank> slow_ranks_;
  std::vector<sim::SlowWay> slow_ways_;
  std::optional<theory::Machine> machine_;
  Exports exports_;
};

void SimulateCommand::declare(OptionTable& table) {
  using enum Trait;
  model_.declare(table, kSimulateUse);
  table.group("Simulation");
  table.add("--machine NAME|FILE", options_.machine,
            fmt::format("what the GPUs and their links can do: {}, or a JSON file", fmt::join(theory::machine_names(), ", ")),
            required | reads);
  table.add("--gpus N", options_.gpus, "how many GPUs; without --layout all are on the tsp axis", Whole{1, kMostRanksOnPaper},
            computed);
  options_.declare_sweep(table);
  table.add("--steps K", options_.steps, "steps that are played, one after another; the table shows one",
            Whole{1, kMostSimulatedSteps});
  table.add("--forward", options_.forward, "a forward pass instead of a training step");
  table.add("--blocking", options_.blocking, "wait for every operation at once: shows what overlap saves");
  table.add(
      "--attention NAME", options_.attention,
      "what computes attention: one of the machine's attention_kernels, such as flash2; unfused (all scores go through "
      "memory), or unfused-again (backward passes make them again); these two change times alone: memory is counted without "
      "the scores. Without it what the machine's attention_efficiency stands for",
      computed);
  table.add(
      "--elementwise WHICH", options_.elementwise,
      "what computes norms, rotary embeddings, gates and the loss: fused (a kernel for each, as compiled code has), or eager (a "
      "kernel for each of their operations, as PyTorch without torch.compile): {}",
      one_of({"fused", "eager"}));
  table.add(
      "--host-us T", options_.host_us,
      "microseconds that a rank's host takes to start a kernel, one after another, as frameworks do that don't compile: a GPU "
      "waits where the host hasn't come so far",
      Number{{.lowest = 0, .highest = kMostHostMicroseconds, .usual = 5}});
  table.add("--fold WHICH", options_.fold,
            "play one unit of ranks for all that do the same, and few layers where many ranks have many that are alike: {}",
            one_of({"on", "off"}));
  table.add(
      "--sums ORDER", options_.sums,
      "how sums go across nodes: rails (by all NICs, as NCCL and RCCL add, and real ranks with --reassociate), canonical (as "
      "real ranks without it) or auto (rails where a node has several NICs): {}",
      one_of({"auto", "rails", "canonical"}));
  table.add(
      "--slow WHAT", options_.slow,
      "rank=3,factor=1.3: its kernels take 1.3 times as long; link=0-1,factor=4: bytes between these ranks do; may be repeated");
  table.add("--against FILE", options_.against,
            "play every point of this report of compare, on a machine that calibrate wrote, and print measured, played and error",
            reads);
  table.add("--csv FILE", options_.csv, "write the table to FILE too; -: to stdout, and everything else to stderr", writes);
  table.add(
      "--export WHAT", options_.exports,
      "goal:FILE: what every rank computes, sends and receives, for LogGOPSim; chakra:DIR: Chakra execution traces, a file for "
      "each rank; may be repeated",
      writes | after_colon);
}

/// Takes --attention's price of attention.
void SimulateCommand::choose_attention() {
  if (machine_->cores) {
    refuse(fmt::format("--attention {}: {} describes cores, which compute attention as tsprun does", options_.attention,
                       options_.machine));
  }
  if (machine_->choose_attention(options_.attention)) return;
  std::vector<std::string_view> names{theory::kUnfused, theory::kUnfusedAgain};
  for (const auto& [name, efficiency] : machine_->attention_kernels) names.push_back(name);
  refuse(fmt::format("--attention {}: of {} these are known: {}", options_.attention, options_.machine, fmt::join(names, ", ")));
}

/// Reads a value of --slow.
void SimulateCommand::read_slow(const std::string& text) {
  const auto bad = [&](const std::string& why) {
    refuse(fmt::format("--slow {}: {}; try rank=3,factor=1.3 or link=0-1,factor=4", text, why));
  };
  const std::size_t comma = text.find(',');
  const std::string who = text.substr(0, comma);
  const std::string how = comma == std::string::npos ? std::string() : text.substr(comma + 1);
  if (!how.starts_with("factor=")) bad("no factor says how many times longer it takes");
  const double factor =
      parse_number("--slow " + text + ": factor", how.substr(7), {.lowest = 1, .highest = kMostFactor, .usual = 2});
  const auto rank = [&](const std::string& number) {
    return static_cast<int>(parse_integer("--slow " + text + ": rank", number, 0, theory::kMostPlayed - 1));
  };
  if (who.starts_with("rank=")) {
    slow_ranks_.push_back({.rank = rank(who.substr(5)), .factor = factor});
  } else if (const std::size_t dash = who.find('-'); who.starts_with("link=") && dash != std::string::npos) {
    slow_ways_.push_back({.one = rank(who.substr(5, dash - 5)), .other = rank(who.substr(dash + 1)), .factor = factor});
    if (slow_ways_.back().one == slow_ways_.back().other) bad("a rank has no link to itself");
  } else {
    bad("it names neither a rank nor a link");
  }
}

void SimulateCommand::validate(const GlobalOptions& global) {
  refuse_ignored(global);
  for (const std::string& text : options_.slow) read_slow(text);
  if (!options_.csv.empty() && options_.csv != "-") check_writable("--csv", options_.csv);
  if (!global.trace.empty()) check_writable("--trace", global.trace);
  exports_ = read_exports(options_.exports);
  machine_ = theory::find_machine(options_.machine);
  if (!options_.attention.empty()) choose_attention();
  if (options_.elementwise == "eager") {
    if (machine_->cores) {
      refuse(fmt::format("--elementwise eager: {} describes cores, which compute as tsprun does", options_.machine));
    }
    machine_->elementwise = theory::Elementwise::eager;
  }
  if (!options_.against.empty()) {
    take_measured(global);
  } else {
    for (const SweepPoint& at : sweep_points(options_, model_, global)) points_.push_back(point_at(at, global));
  }
  if (points_.size() > 1 && !global.trace.empty())
    refuse(fmt::format("--trace {}: it holds one step; give one layout and size", global.trace));
  if (points_.size() > 1 && !options_.exports.empty())
    refuse(fmt::format("--export {}: it holds one step; give one layout and size", options_.exports.front()));
  if (std::ranges::none_of(points_, [](const SimulatePoint& point) { return point.why.empty(); })) refuse(points_.front().why);
}

/// Returns the point with its values, or with the reason why it can't be played.
SimulatePoint SimulateCommand::point_at(const SweepPoint& at, const GlobalOptions& global) const {
  SimulatePoint point{.model = model_, .layout = {}, .typed = {}, .why = {}, .forward = options_.forward};
  take(at, point.model);
  GlobalOptions of = global;
  if (!at.layout.empty()) {
    take(at, of);
    point.typed = "--layouts " + at.layout;
  } else if (global.layout.given() || global.ranks.given()) {
    point.typed = ranks_as_typed(global);
  } else {
    of.layout = Layout::tsp(options_.gpus);
    point.typed = fmt::format("--gpus {}", options_.gpus.value);
  }
  try {
    point.layout = layout_of(of);
    validate_model(point.model, of, kSimulateUse);
    check(point);
  } catch (const Error& error) {
    point.why = error.what();
    show_as_asked(at, point.model);
  }
  return point;
}

/// Takes the points of --against.
void SimulateCommand::take_measured(const GlobalOptions& global) {
  const auto alone = [&](const std::string& option) {
    refuse(fmt::format("--against {}: it says which models, layouts and sizes; leave {} out", options_.against, option));
  };
  if (!machine_->cores) {
    refuse(
        fmt::format("--against {}: {} describes GPUs; give --machine a file that tsprun calibrate --json wrote on this machine",
                    options_.against, options_.machine));
  }
  if (global.layout.given() || global.ranks.given()) alone(ranks_as_typed(global));
  if (options_.gpus.given()) alone("--gpus " + options_.gpus.text);
  for (const auto& [option, text] :
       {std::pair("--layouts", &options_.layouts), std::pair("--seqs", &options_.sequences),
        std::pair("--batches", &options_.batches), std::pair("--configs", &options_.configs),
        std::pair("--config", &model_.config), std::pair("--seq", &model_.sequence.text),
        std::pair("--batch", &model_.batch.text), std::pair("--dtype", &model_.dtype.text),
        std::pair("--recompute", &model_.recompute.text), std::pair("--micro-batches", &model_.micro_batches.text),
        std::pair("--documents", &model_.documents)}) {
    if (!text->empty()) alone(std::string(option) + " " + *text);
  }
  if (options_.forward) alone("--forward");
  for (const AxisRow& row : kAxes) {
    if (global.variant(row.kind).given()) alone(fmt::format("--{} {}", row.name, global.variant(row.kind).text));
  }
  for (const MeasuredPoint& measured : read_measured("--against", options_.against)) {
    SimulatePoint point{.model = measured.model,
                        .layout = measured.layout,
                        .typed = measured.layout.label(),
                        .why = {},
                        .forward = measured.forward,
                        .measured = measured.seconds,
                        .link_gbps = measured.link_gbps};
    try {
      check(point);
    } catch (const Error& error) {
      point.why = error.what();
    }
    points_.push_back(std::move(point));
  }
}

/// Throws an error if the point can't be played.
void SimulateCommand::check(const SimulatePoint& point) const {
  const Layout& layout = point.layout;
  if (options_.gpus.given() && layout.ranks() != options_.gpus) {
    refuse(fmt::format("--gpus {}: {} has {} ranks; a rank is a GPU", options_.gpus.text, point.typed, layout.ranks()));
  }
  if (layout.ranks() > kMostRanksOnPaper) {
    refuse(fmt::format("{}: {} ranks; {} are the most", point.typed, layout.ranks(), kMostRanksOnPaper));
  }
  if (const std::string why = why_impossible(point.model.setting(), layout); !why.empty()) {
    refuse(fmt::format("{}: {}", point.typed, why));
  }
  const int unit = theory::unit_of(layout, *machine_);
  const int played = options_.fold == "on" ? unit : layout.ranks();
  if (played > theory::kMostPlayed) {
    refuse(fmt::format(
        "{}: {} ranks would be played, each talking to all others, and {} are the most; of layouts with dp one unit of "
        "whole replicas on whole nodes{} is played for all",
        point.typed, played, theory::kMostPlayed, machine_->spine ? " of whole leaf switches" : ""));
  }
  if (!options_.slow.empty() && played != layout.ranks()) {
    refuse(fmt::format("--slow {}: one unit of {} ranks would be played for all {}, so each unit would be slow; add --fold off",
                       options_.slow.front(), unit, layout.ranks()));
  }
  if (!options_.exports.empty() && played != layout.ranks()) {
    refuse(fmt::format("--export {}: it holds every rank, and one unit of {} would be played for all {}; add --fold off",
                       options_.exports.front(), unit, layout.ranks()));
  }
  if (options_.host_us != 0 && machine_->cores) {
    refuse(fmt::format("--host-us {}: {} describes cores, which compute themselves", options_.host_us.text, options_.machine));
  }
  if (options_.host_us != 0 && !options_.exports.empty()) {
    refuse(fmt::format("--export {}: it says how long kernels take, not when a host starts them; leave --host-us {} out",
                       options_.exports.front(), options_.host_us.text));
  }
  if (!options_.exports.empty() && machine_->cores) {
    refuse(fmt::format("--export {}: {} describes cores, which also copy and sum, and neither format can say when",
                       options_.exports.front(), options_.machine));
  }
  for (const theory::SlowRank& slow : slow_ranks_) {
    if (slow.rank >= layout.ranks())
      refuse(fmt::format("--slow rank={}: {} has ranks 0 to {}", slow.rank, point.typed, layout.ranks() - 1));
  }
  for (const sim::SlowWay& slow : slow_ways_) {
    if (const int most = std::max(slow.one, slow.other); most >= layout.ranks()) {
      refuse(fmt::format("--slow link={}-{}: {} has ranks 0 to {}", slow.one, slow.other, point.typed, layout.ranks() - 1));
    }
  }
  if (!machine_->flops(point.model.dtype)) {
    refuse(
        fmt::format("--dtype {}: {} doesn't state flops_per_s for it", tsprun::name(point.model.dtype.value), options_.machine));
  }
}

/// Refuses options that say what this machine's ranks have, since none runs on it.
void SimulateCommand::refuse_ignored(const GlobalOptions& global) const {
  const auto refuse_one = [](const std::string& option) {
    refuse(fmt::format("{}: no rank runs here; --machine says what GPUs, nodes and links can do", option));
  };
  if (global.nodes.given()) refuse_one("--nodes " + global.nodes.text);
  if (global.threads.given()) refuse_one("--threads " + global.threads.text);
  if (global.mem_per_rank.given()) refuse_one("--mem-per-rank " + global.mem_per_rank.text);
  if (global.intra != bootstrap::Demand::automatic) refuse_one("--intra " + global.intra.text);
  if (global.inter != bootstrap::Demand::automatic) refuse_one("--inter " + global.inter.text);
  if (!global.rdma.empty()) refuse_one("--rdma " + global.rdma);
  if (global.reassociate && options_.sums == "canonical") refuse("--reassociate and --sums canonical: give one of them");
  if (!options_.layouts.empty() && (global.layout.given() || global.ranks.given())) {
    refuse(fmt::format("--layouts {} and {}: give one of them", options_.layouts, ranks_as_typed(global)));
  }
  check_training_options(model_, options_.forward);
}

/// Plays a point.
theory::Simulated SimulateCommand::play(const SimulatePoint& point, const GlobalOptions& global) const {
  theory::Machine machine = *machine_;
  if (point.link_gbps > 0) machine.within_bytes_per_s = 1e9 * point.link_gbps;
  return theory::simulate({.setting = point.model.setting(), .layout = point.layout}, machine,
                          {.fold = options_.fold == "on" && options_.slow.empty(),
                           .training = !point.forward,
                           .blocking = options_.blocking,
                           .steps = options_.steps,
                           .host_seconds = 1e-6 * options_.host_us.value,
                           .binds = point.measured == 0,
                           .trace = !global.trace.empty(),
                           .tasks = !options_.exports.empty(),
                           .slow_ranks = slow_ranks_,
                           .slow_ways = slow_ways_,
                           .algorithms = global.algorithms,
                           .reassociate = adds_by_rails(global),
                           .threads = static_cast<std::size_t>(machine::usable_cores())});
}

/// Returns whether sums go across nodes by rails.
bool SimulateCommand::adds_by_rails(const GlobalOptions& global) const {
  return global.reassociate || options_.sums == "rails" || (options_.sums == "auto" && machine_->adds_by_rails());
}

int SimulateCommand::run(const GlobalOptions& global, Report& report) {
  report_model(report, std::ranges::find(points_, std::string(), &SimulatePoint::why)->model);
  nlohmann::ordered_json& rows = report.root()["simulate"] = nlohmann::ordered_json::array();
  theory::Simulated last;
  for (SimulatePoint& point : points_) {
    if (points_.size() > 1 && point.why.empty() && !global.quiet) {
      spdlog::info("{} of {}: {}, {}, batch {}, seq {}", rows.size() + 1, points_.size(), point.layout.label(),
                   point.model.shape.name, point.model.batch, point.model.sequence);
    }
    const auto begin = std::chrono::steady_clock::now();
    try {
      if (point.why.empty()) last = play(point, global);
    } catch (const Error& error) {
      if (points_.size() == 1) throw;  // else the others keep their rows
      point.why = error.what();
    }
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    rows.push_back(simulate_json(point, *machine_, point.why.empty() ? &last : nullptr, wall));
  }
  const bool beside = !options_.against.empty();
  const Table table = beside ? against_table(rows) : simulate_table(rows);
  print_lines(table.lines(table_columns()));
  if (beside) {
    const nlohmann::ordered_json against = report.root()["against"] = against_json(rows);
    print_lines(wrapped(describe_against(against), table_columns(), "  "));
  } else {
    for (const std::string& remark : simulate_remarks(points_, rows, *machine_, adds_by_rails(global)))
      print_lines(wrapped(remark, table_columns(), "  "));
  }
  // What was played stays, even if a file can't be written.
  std::string trouble;
  if (!options_.csv.empty()) trouble = write_csv("--csv", options_.csv, table.csv());
  try {
    write_exports(exports_, last, options_.blocking);
    if (!global.trace.empty()) write_played_trace(last, {.path = global.trace, .flows = global.trace_options.flows});
  } catch (const Error& error) {
    trouble += (trouble.empty() ? "" : "; ") + std::string(error.what());
  }
  if (trouble.empty()) return 0;
  spdlog::error("{}", trouble);
  report.set_failure(refusal(trouble), {});
  return 1;
}

}  // namespace

std::unique_ptr<Command> make_simulate() { return std::make_unique<SimulateCommand>(); }

}  // namespace tsprun::detail::launcher
