// `tsprun calibrate`: what kernels, copies, sums and messages cost on this machine's cores, as a machine for `simulate`. It runs
// none of the jobs that are predicted: kernels run in the order of a schedule whose operations move nothing, on all ranks at
// once.
#include "layers/theory/calibrate.h"
#include "core/context.h"
#include "launcher/commands/command.h"
#include "launcher/model/layouts.h"
#include "launcher/model/measured.h"
#include "launcher/model/session.h"
#include "launcher/model/sweep.h"
#include "launcher/refuse.h"
#include "launcher/standard_output.h"
#include "launcher/table.h"
#include "layers/layout/check_layout.h"
#include "transport/cause.h"
#include "transport/factory.h"
#include "transport/machine.h"
#include "transport/posix.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

constexpr ModelOptionUse kCalibrateUse{
    .model_folder = false, .files = false, .seed = false, .swept = true, .ranks = false, .beyond = true};
constexpr std::int64_t kMostPasses = 1000;
constexpr std::size_t kChoreBytes = std::size_t{4} << 20;  // of a rank, in the measurements of copies and sums
constexpr int kChoreRuns = 15;
constexpr int kMessages = 2000;
constexpr double kUnlimited = 1e30;
constexpr double kCoreToCore = 1e-7;

/// The options of `calibrate`, each with its default.
struct CalibrateOptions : SweepOptions {
  std::string like;
  Given<int> passes{5};
  bool forward = false;
};

/// A step whose kernels are timed.
struct CalibratePoint {
  Setting setting;
  Layout layout;
  bool forward = false;
};

class CalibrateCommand final : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "calibrate",
            .help = "what kernels, copies, sums and messages cost on this machine's cores: a machine for simulate",
            .examples = {"tsprun calibrate --like measured.json --json host.json",
                         "tsprun calibrate --layouts 'tsp=2;tp=2' --config micro --seqs 256,512 --json host.json"},
            .ranks = RankUse::jobs};
  }
  void declare(OptionTable& table) override;
  void validate(const GlobalOptions& global) override;
  Inputs inputs() const override { return {.kernels = true, .files = {}}; }
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void measure(Context& context, ReportSink& sink, const GlobalOptions& global) const;

  ModelCommandOptions model_;
  CalibrateOptions options_;
  std::vector<CalibratePoint> points_;
  int ranks_ = 1;  // that measure at once
};

void CalibrateCommand::declare(OptionTable& table) {
  using enum Trait;
  model_.declare(table, kCalibrateUse);
  table.group("Calibration");
  options_.declare_sweep(table);
  table.add("--like FILE", options_.like, "time the kernels of every point of this report of compare, instead of --layouts",
            reads);
  table.add("--passes N", options_.passes, "steps of each point whose kernels are timed, after one that isn't",
            Whole{1, kMostPasses});
  table.add("--forward", options_.forward, "forward passes only");
}

void CalibrateCommand::validate(const GlobalOptions& global) {
  if (global.layout.given() || global.ranks.given())
    refuse(fmt::format("{}: give --layouts, or --like FILE; as many ranks measure as have a core", ranks_as_typed(global)));
  if (global.threads.given() && global.threads != 1)
    refuse(fmt::format("--threads {}: a rank that is simulated has one core", global.threads.text));
  if (global.nodes != 1 || !global.nnodes.empty())
    refuse(fmt::format("--nodes {}: calibrate measures the cores of one node; leave it out", global.nodes));
  if (!within_node(global.intra).views)
    refuse(fmt::format("--intra {}: calibrate measures what ranks cost that share memory; leave it out", global.intra.text));
  check_training_options(model_, options_.forward);
  if (options_.like.empty() == options_.layouts.empty())
    refuse("calibrate needs what to time: either --layouts and a model, or --like FILE, a report of compare");
  if (!options_.like.empty()) {
    if (!model_.config.empty() || !options_.configs.empty() || !options_.sequences.empty() || !options_.batches.empty() ||
        options_.forward || model_.sequence.given() || model_.batch.given() || model_.dtype.given() || model_.recompute.given()) {
      refuse(fmt::format("--like {}: it says which models, sizes and passes; leave those options out", options_.like));
    }
    for (const MeasuredPoint& point : read_measured("--like", options_.like))
      points_.push_back({.setting = point.model.setting(), .layout = point.layout, .forward = point.forward});
  } else {
    for (const SweepPoint& at : sweep_points(options_, model_, global)) {
      GlobalOptions of = global;
      ModelCommandOptions model = model_;
      take(at, of);
      take(at, model);
      validate_model(model, of, kCalibrateUse);
      points_.push_back({.setting = model.setting(), .layout = layout_of(of), .forward = options_.forward});
    }
  }
  int most = 1;
  for (const CalibratePoint& point : points_) {
    if (const std::string why = why_impossible(point.setting, point.layout); !why.empty())
      refuse(fmt::format("{}: {}", point.layout.label(), why));
    most = std::max(most, point.layout.ranks());
  }
  ranks_ = std::min(most, machine::usable_cores());
}

/// Returns the median seconds of `runs` calls of work(), each after prepare() and a barrier.
template <class Prepare, class Work>
double median_seconds(Communicator& world, int runs, const Prepare& prepare, const Work& work) {
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    prepare();
    world.barrier();
    const std::uint64_t begin = posix::now_ns();
    work();
    seconds.push_back(1e-9 * static_cast<double>(posix::now_ns() - begin));
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

/// Measures copies, sums and messages on all ranks at once.
ordered_json measure_chores(Context& context) {
  Communicator& world = context.world();
  const auto ranks = static_cast<std::size_t>(world.size());
  const bool alone = ranks == 1;
  const std::size_t count = kChoreBytes / sizeof(float);
  const HeapBlock memory = context.allocate((ranks + 1) * kChoreBytes, "calibration");
  const Buffer all(memory.bytes().data(), ranks * count, DType::f32);
  const Buffer elsewhere(memory.bytes().data() + ranks * kChoreBytes, count, DType::f32);
  const Buffer mine = alone ? elsewhere : all.slice(static_cast<std::size_t>(world.rank()) * count, count);
  const auto write = [](Buffer what) { return [what] { std::memset(what.data, 0, what.bytes()); }; };
  const double message = alone ? 0
                               : median_seconds(
                                     world, kChoreRuns, [] {},
                                     [&] {
                                       for (int i = 0; i < kMessages; ++i)
                                         world.all_gather(mine.slice(0, 2), all.slice(0, 2 * ranks));
                                     }) /
                                     kMessages / (2 * static_cast<double>(ranks - 1));
  const double copy = median_seconds(world, kChoreRuns, write(mine), [&] { world.all_gather(mine, all); });
  const double copied = static_cast<double>(kChoreBytes * (alone ? 1 : ranks - 1));
  const double sum =
      alone ? copy : median_seconds(world, kChoreRuns, write(all), [&] { world.reduce_scatter(all, elsewhere, Reduction::sum); });
  const double summed = static_cast<double>(alone ? kChoreBytes : ranks * kChoreBytes);
  return {{"copy_bytes_per_s", copied / copy}, {"reduce_bytes_per_s", summed / sum}, {"message_s", message}};
}

/// Returns what all ranks sent, on every rank.
std::vector<std::string> gather_texts(Communicator& world, const std::string& mine) {
  std::vector<std::string> all;
  for (int rank = 0; rank < world.size(); ++rank) {
    std::string text = rank == world.rank() ? mine : std::string();
    std::uint64_t length = text.size();
    world.broadcast(Buffer(reinterpret_cast<std::byte*>(&length), sizeof length, DType::byte), rank);
    text.resize(length);
    world.broadcast(Buffer(reinterpret_cast<std::byte*>(text.data()), length, DType::byte), rank);
    all.push_back(std::move(text));
  }
  return all;
}

/// Returns a kernel without its price, as the machine file has it.
ordered_json kernel_json(const KernelCost& cost) {
  ordered_json sizes = ordered_json::array();
  for (const std::uint64_t size : cost.sizes) sizes.push_back(size);
  while (!sizes.empty() && sizes.back() == 0) sizes.erase(sizes.size() - 1);
  return {{"kernel", cost.kernel},
          {"dtype", tsprun::name(cost.dtype)},
          {"result", tsprun::name(cost.result)},
          {"sizes", sizes},
          {"flops", cost.flops},
          {"bytes", static_cast<double>(cost.bytes_read + cost.bytes_written)}};
}

/// Measures everything; every rank runs it. Sets `machine` in the report.
void CalibrateCommand::measure(Context& context, ReportSink& sink, const GlobalOptions& global) const {
  Session session(context, sink, global);
  Communicator& world = context.world();
  ordered_json machine = measure_chores(context);
  ordered_json mine = ordered_json::array();
  double between = 0;
  double runs = 0;
  for (const CalibratePoint& point : points_) {
    for (int first = 0; first < std::max(point.layout.ranks(), world.size()); first += world.size()) {
      const int rank = (first + world.rank()) % point.layout.ranks();
      const theory::TimedStep step = theory::time_kernels({.setting = point.setting, .layout = point.layout}, rank,
                                                          !point.forward, options_.passes, [&] { world.barrier(); });
      between += step.between_seconds;
      runs += step.kernel_runs;
      for (const theory::TimedKernel& kernel : step.kernels)
        mine.push_back({kernel_json(kernel.cost), kernel.price.seconds, kernel.price.ticks});
    }
  }
  mine.push_back({between, runs});
  const std::vector<std::string> texts = gather_texts(world, mine.dump());
  if (!session.speaks()) return;
  struct Sum {
    double seconds = 0;
    double ticks = 0;
    double number = 0;
  };
  std::map<std::string, Sum> sums;  // by the kernel's JSON
  between = runs = 0;
  for (const std::string& text : texts) {
    for (const ordered_json& each : ordered_json::parse(text)) {
      if (!each[0].is_object()) {
        between += each[0].get<double>();
        runs += each[1].get<double>();
        continue;
      }
      Sum& sum = sums[each[0].dump()];
      sum.seconds += each[1].get<double>();
      sum.ticks += each[2].get<double>();
      ++sum.number;
    }
  }
  machine["launch_s"] = std::clamp(between / std::max(1.0, runs), 0.0, 1.0);
  ordered_json& kernels = machine["kernels"] = ordered_json::array();
  for (const auto& [text, sum] : sums) {
    ordered_json kernel = ordered_json::parse(text);
    kernel["seconds"] = sum.seconds / sum.number;
    kernel["ticks"] = sum.ticks / sum.number;
    kernels.push_back(std::move(kernel));
  }
  sink.set("machine", machine);
}

int CalibrateCommand::run(const GlobalOptions& global, Report& report) {
  for (const char* key : {"layout", "ranks", "transports"}) report.root().erase(key);
  GlobalOptions own = global;
  take({.layout = fmt::format("tsp={}", ranks_), .config = {}, .sequence = {}, .batch = {}}, own);
  own.threads.text = "1";
  own.quiet = true;
  validate_global(own, RankUse::job, 1);
  if (!global.quiet) spdlog::info("{} ranks time {} point{}", ranks_, points_.size(), points_.size() == 1 ? "" : "s");
  Report job("");
  const int code = run_model_job(own, job, [&](Context& context, ReportSink& sink) { measure(context, sink, own); });
  if (code != 0) {
    report.root()["failure"] = job.root()["failure"];
    return code;
  }
  const ordered_json& measured = job.root().at("machine");
  ordered_json& machine = report.root()["machine"] = {
      {"version", 3},
      {"kind", "cores"},
      {"name", fmt::format("{} cores of this host", ranks_)},
      {"cores", machine::usable_cores()},
      {"memory_bytes", machine::total_memory() / static_cast<std::uint64_t>(ranks_)},
      {"within_node", {{"fabric", "links"}, {"bytes_per_s", kUnlimited}, {"latency_s", kCoreToCore}}}};
  machine.update(measured);
  Table table(std::vector<Column>{{"what", Align::left}, {"costs"}});
  const auto row = [&](const char* what, const std::string& costs) { table.row({std::string(what), costs}); };
  row("copies", fmt::format("{:.2f} GB/s", 1e-9 * measured.at("copy_bytes_per_s").get<double>()));
  row("sums", fmt::format("{:.2f} GB/s", 1e-9 * measured.at("reduce_bytes_per_s").get<double>()));
  row("a message", fmt::format("{:.2f} us", 1e6 * measured.at("message_s").get<double>()));
  row("between kernels", fmt::format("{:.2f} us", 1e6 * measured.at("launch_s").get<double>()));
  row("kernels timed", std::to_string(measured.at("kernels").size()));
  print_lines(table.lines());
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_calibrate() { return std::make_unique<CalibrateCommand>(); }

}  // namespace tsprun::detail::launcher
