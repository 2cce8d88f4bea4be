// `tsprun simulate`: how long a step would take on a cluster that isn't there. Schedules are recorded on phantom ranks and played
// in virtual time, on a machine that a file describes.
#include "layers/theory/simulate.h"
#include "launcher/commands/command.h"
#include "launcher/counts_json.h"
#include "launcher/model/layouts.h"
#include "launcher/model/model_options.h"
#include "launcher/plan/amounts.h"
#include "launcher/plan/text_table.h"
#include "launcher/refuse.h"
#include "launcher/standard_output.h"
#include "layers/layout/check_layout.h"
#include "layers/theory/machine.h"
#include "layers/theory/search.h"
#include "transport/environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

namespace tsprun::detail::launcher {

namespace {

constexpr ModelOptionUse kSimulateUse{.model_folder = false, .files = false, .seed = false, .ranks = false};
constexpr std::int64_t kMostSimulatedSteps = 1000;
constexpr int kMostPlayed = 1024;

/// The options of `simulate`, each with its default.
struct SimulateCommandOptions {
  std::string machine;
  Given<int> gpus{1};
  Given<int> steps{1};
  bool forward = false;
  bool blocking = false;
  std::string fold = "on";
};

class SimulateCommand final : public Command {
 public:
  CommandFacts facts() const override {
    return {
        .name = "simulate",
        .help = "the time of a step on a cluster that isn't there, from the schedules themselves",
        .examples = {"tsprun simulate --machine mi300x --gpus 64 --layout dp=8,tsp=8 --config paper-7b --dtype bf16 --batch 8",
                     "tsprun simulate --machine h100 --gpus 8 --layout tp=8 --config micro --seq 512 --forward"},
        .ranks = RankUse::on_paper};
  }
  void declare(OptionTable& table) override;
  void validate(const GlobalOptions& global) override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  theory::MeshSetting setting() const { return {.setting = model_.setting(), .layout = layout_}; }
  void refuse_ignored(const GlobalOptions& global) const;

  ModelCommandOptions model_;
  SimulateCommandOptions options_;
  Layout layout_;
  std::optional<theory::Machine> machine_;
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
  table.add("--steps K", options_.steps, "steps that are played, one after another; the table shows one",
            Whole{1, kMostSimulatedSteps});
  table.add("--forward", options_.forward, "a forward pass instead of a training step");
  table.add("--blocking", options_.blocking, "wait for every operation at once: shows what overlap saves");
  table.add("--fold WHICH", options_.fold, "play one unit of ranks for all that do the same: {}", one_of({"on", "off"}));
}

void SimulateCommand::validate(const GlobalOptions& global) {
  validate_model(model_, global, kSimulateUse);
  refuse_ignored(global);
  const bool typed = global.layout.given() || global.ranks.given();
  GlobalOptions of = global;
  if (!typed) of.layout = Layout::tsp(options_.gpus);
  layout_ = layout_of(of);
  if (typed && options_.gpus.given() && layout_.ranks() != options_.gpus) {
    refuse(
        fmt::format("--gpus {}: {} has {} ranks; a rank is a GPU", options_.gpus.text, ranks_as_typed(global), layout_.ranks()));
  }
  if (const std::string why = why_impossible(model_.setting(), layout_); !why.empty()) {
    refuse(fmt::format("{}: {}", typed ? ranks_as_typed(global) : "--gpus " + options_.gpus.text, why));
  }
  machine_ = theory::find_machine(options_.machine);
  const int played = options_.fold == "on" ? theory::unit_of(layout_, machine_->gpus_per_node) : layout_.ranks();
  if (played > kMostPlayed) {
    refuse(fmt::format(
        "{}: {} ranks would be played, each talking to all others, and {} are the most; of layouts with dp one unit of "
        "whole replicas on whole nodes is played for all",
        typed ? ranks_as_typed(global) : "--gpus " + options_.gpus.text, played, kMostPlayed));
  }
  if (!machine_->flops(model_.dtype)) {
    refuse(fmt::format("--dtype {}: {} doesn't state flops_per_s for it", tsprun::name(model_.dtype.value), options_.machine));
  }
}

/// Refuses options that say how ranks run on this machine, since none does.
void SimulateCommand::refuse_ignored(const GlobalOptions& global) const {
  const auto refuse_one = [](const std::string& option) {
    refuse(fmt::format("{}: no rank runs here; --machine says what GPUs, nodes and links can do", option));
  };
  if (global.nodes.given()) refuse_one("--nodes " + global.nodes.text);
  if (!global.nnodes.empty()) refuse_one("--nnodes " + global.nnodes);
  if (global.threads.given()) refuse_one("--threads " + global.threads.text);
  if (global.mem_per_rank.given()) refuse_one("--mem-per-rank " + global.mem_per_rank.text);
  if (global.intra != "auto") refuse_one("--intra " + global.intra);
  if (global.inter != "auto") refuse_one("--inter " + global.inter);
  if (global.tls != "auto") refuse_one("--tls " + global.tls);
  if (!global.rdma.empty()) refuse_one("--rdma " + global.rdma);
  if (global.bind.given()) refuse_one("--bind " + global.bind.text);
  if (global.verify) refuse_one("--verify");
  if (options_.forward && model_.recompute.given()) {
    refuse(fmt::format("--recompute {}: a forward pass keeps nothing that could be made again; leave --forward out",
                       model_.recompute.text));
  }
}

int SimulateCommand::run(const GlobalOptions& global, Report& report) {
  report_model(report, model_);
  const auto begin = std::chrono::steady_clock::now();
  const theory::Simulated played = theory::simulate(setting(), *machine_,
                                                    {.fold = options_.fold == "on",
                                                     .training = !options_.forward,
                                                     .blocking = options_.blocking,
                                                     .steps = options_.steps,
                                                     .algorithms = Environment().algorithms(),
                                                     .reassociate = global.reassociate});
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double tokens = real(model_.setting().tokens()) / played.seconds;
  const double flops = options_.forward ? theory::forward_flops(model_.setting()) : theory::model_flops(model_.setting());
  const double mfu = flops / (played.seconds * layout_.ranks() * *machine_->flops(model_.dtype));
  const theory::LinkUse* busiest = nullptr;
  for (const theory::LinkUse& link : played.links) {
    if (busiest == nullptr || link.busy > busiest->busy) busiest = &link;
  }

  TextTable table({"layout", "step ms", "tokens/s", "MFU", "compute ms", "exposed ms", "memory", "busiest link"});
  table.left_from(7);
  table.row({layout_.label(), fmt::format("{:.2f}", 1e3 * played.seconds), fmt::format("{:.0f}", tokens),
             fmt::format("{:.1f} %", 100 * mfu), fmt::format("{:.2f}", 1e3 * played.compute_seconds),
             fmt::format("{:.2f}", 1e3 * played.exposed_seconds), readable_bytes(real(played.memory_peaks.total)),
             busiest == nullptr ? "none" : fmt::format("{} ({:.0f} %)", busiest->kind, 100 * busiest->busy)});
  for (const std::string& line : table.lines()) print("{}\n", line);
  if (mfu > 1) print("MFU above 100 %: the machine's efficiency or its peak is too high\n");
  if (real(played.memory_peaks.total) > machine_->memory_bytes) {
    print("rank {} needs {}, and a GPU has {}\n", played.fullest, readable_bytes(real(played.memory_peaks.total)),
          readable_bytes(machine_->memory_bytes));
  }

  nlohmann::ordered_json received = nlohmann::ordered_json::object();
  for (std::size_t purpose = 0; purpose < kPurposes; ++purpose) {
    received[std::string(tsprun::name(static_cast<Purpose>(purpose)))] = played.received[purpose];
  }
  nlohmann::ordered_json links = nlohmann::ordered_json::array();
  for (const theory::LinkUse& link : played.links)
    links.push_back({{"kind", link.kind}, {"busy", link.busy}, {"bytes", link.bytes}});
  report.root()["simulate"] = nlohmann::ordered_json::array({{{"layout", layout_.label()},
                                                              {"gpus", layout_.ranks()},
                                                              {"seq", model_.sequence.value},
                                                              {"batch", model_.batch.value},
                                                              {"seconds", played.seconds},
                                                              {"tokens_per_s", tokens},
                                                              {"mfu", mfu},
                                                              {"compute_seconds", played.compute_seconds},
                                                              {"exposed_seconds", played.exposed_seconds},
                                                              {"memory_peak_bytes", memory_json(played.memory_peaks)},
                                                              {"traffic_bytes", received},
                                                              {"links", links},
                                                              {"messages", played.messages},
                                                              {"classes", played.played},
                                                              {"wall_seconds", wall}}});
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_simulate() { return std::make_unique<SimulateCommand>(); }

}  // namespace tsprun::detail::launcher
