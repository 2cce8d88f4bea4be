// `tsprun bench OP[,OP…]|all`: micro-benchmarks of messages and collectives, with nccl-tests' columns.
// launcher/bench/ has how times are measured (measure.h), on what (rank_subject.h), and whether that fits (room.h).
#include "launcher/bench/measure.h"
#include "launcher/bench/rank_subject.h"
#include "launcher/bench/room.h"
#include "launcher/bench/table.h"
#include "launcher/commands/command.h"
#include "launcher/refuse.h"
#include "launcher/table.h"
#include "transport/cause.h"
#include "transport/machine.h"
#include "transport/shm/node_memory.h"
#include "transport/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

using bench::Case;
using bench::Kind;

constexpr std::int64_t kMostIterations = 1'000'000;
constexpr std::string_view kUsualSizes = "8,1K,64K,1M,64M";
constexpr double kLongestRow = 3600;

std::vector<std::string> operations() {
  std::vector<std::string> names;
  for (const Kind kind : bench::all_kinds()) names.emplace_back(bench::name(kind));
  return names;
}

std::string operation_names() { return fmt::format("{}", fmt::join(operations(), ", ")); }

std::vector<Kind> parse_operations(const std::string& text) {
  if (text == "all") return {bench::all_kinds().begin(), bench::all_kinds().end()};
  std::vector<Kind> kinds;
  for (const std::string& op : bench::split_list(text)) {
    const std::optional<Kind> kind = bench::kind_from_name(op);
    if (!kind) {
      refuse(fmt::format("bench {}: there is no operation \"{}\"{}; {} and all work", text, op, did_you_mean(op, operations()),
                         operation_names()));
    }
    kinds.push_back(*kind);
  }
  return kinds;
}

constexpr std::uint64_t kMostStepFactor = 1 << 20;

/// Parses a first or last size.
struct Bound {
  std::uint64_t operator()(const std::string& option, const std::string& text) const {
    const std::uint64_t bytes = parse_size(option, text);
    if (bytes == 0) refuse(fmt::format("{} {}: no bytes; try {} 8", option, text, option));
    return bytes;
  }
  std::string print(std::uint64_t bytes) const { return format_size(bytes); }
};

std::vector<std::uint64_t> parse_sizes(const std::string& text) {
  std::vector<std::uint64_t> sizes;
  for (const std::string& size : bench::split_list(text)) sizes.push_back(parse_size("--sizes", size));
  return sizes;
}

/// Parses --iters: "auto", which is 0, or a number.
struct Iterations {
  std::uint64_t operator()(const std::string& option, const std::string& text) const {
    if (text == "auto") return 0;
    if (text.find_first_not_of("0123456789-") != std::string::npos)
      refuse(fmt::format("{} {}: not a number; auto and 1 to {} work", option, text, kMostIterations));
    return static_cast<std::uint64_t>(parse_integer(option, text, 1, kMostIterations));
  }
  std::string print(std::uint64_t iterations) const { return iterations == 0 ? "auto" : std::to_string(iterations); }
};

/// Returns all element types that have values: all but bytes.
Choice<DType> element_types() {
  Choice<DType> choice = dtypes();
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool is_listed = dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16;
    if (dtype != DType::byte && !is_listed) choice.choices.emplace_back(std::string(tsprun::name(dtype)), dtype);
  }
  return choice;
}

Choice<Reduction> reductions() {
  Choice<Reduction> choice;
  for (int i = 0; i < kReductionCount; ++i) {
    choice.choices.emplace_back(std::string(tsprun::name(static_cast<Reduction>(i))), static_cast<Reduction>(i));
  }
  return choice;
}

/// The options of `bench`, each with its default.
struct BenchOptions {
  std::string ops;
  std::string sizes = std::string(kUsualSizes);
  // nccl-tests' options, with its defaults.
  Given<std::uint64_t> first{std::uint64_t{32} << 20};
  Given<std::uint64_t> last{std::uint64_t{32} << 20};
  Given<std::uint64_t> factor{2};
  std::string gpus;
  Given<DType> dtype{DType::f32};
  Given<Reduction> reduction{Reduction::sum};
  Given<std::uint64_t> iterations{0};  ///< 0: --iters auto
  Given<double> min_seconds{0.3};
  Given<double> max_seconds{2.0};
  bool check = true;
  bool both_places = true;
};

/// The command `bench`.
class BenchCommand final : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "bench",
            .help = "measure messages and collectives between ranks, with nccl-tests' columns",
            .examples = {"tsprun -n 4 bench all_reduce,all_gather --sizes 1K,1M,16M",
                         "tsprun -n 2 --intra tcp --json report.json bench pingpong"},
            .multiplies = false};
  }
  void declare(OptionTable& table) override;
  void hand_over(GlobalOptions& global) const override;
  void validate(const GlobalOptions& global) override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void refuse_ignored(std::span<const bench::Kind> kinds) const;
  std::vector<std::uint64_t> sizes() const;
  void say(ReportSink& sink, const std::string& line) const;
  void print_head(Context& context, ReportSink& sink, int cores, bool several_machines, const std::string& transports) const;
  void measure(Context& context, ReportSink& sink, int cores, bool several_machines) const;

  BenchOptions options_;
  // Results of validation.
  std::vector<bench::Case> cases_;
  bench::Pace pace_;
  std::vector<std::string> notes_;  // comment lines that say which rows were left out, and why
  std::size_t columns_ = 0;
};

void BenchCommand::declare(OptionTable& table) {
  table.add("op OP[,OP...]|all", options_.ops, fmt::format("operations separated by commas, or all: {}", operation_names()),
            Trait::required);
  table.add("--sizes SIZE[,SIZE...]", options_.sizes,
            "bytes of the whole buffer (gathered output, unscattered input), separated by commas; a size that doesn't divide is "
            "rounded down, and left out at 0");
  using enum Trait;
  table.add("-b,--minbytes SIZE", options_.first, "first size, where -b, -e or -f replace --sizes; default: 32M", Bound{},
            computed);
  table.add("-e,--maxbytes SIZE", options_.last, "largest size; default: 32M", Bound{}, computed);
  table.add("-f,--stepfactor N", options_.factor, "each size is N times the one before; default: 2", Whole{2, kMostStepFactor},
            computed);
  table.add("-g N", options_.gpus, "ranks: the same as -n N", computed);
  table.add("--dtype TYPE", options_.dtype, "element type: {}", element_types());
  table.add("--op REDUCTION", options_.reduction, "what all_reduce, reduce and reduce_scatter do: {}", reductions());
  table.add("--iters auto|N", options_.iterations,
            "iterations a row, out of place and again in place; auto: at least 20 and --min-time, unless --max-time ends them",
            Iterations{});
  table.add("--min-time SECONDS", options_.min_seconds, "with --iters auto: seconds a row and place, at least",
            Number{{.lowest = 0, .highest = kLongestRow}});
  table.add("--max-time SECONDS", options_.max_seconds, "with --iters auto: seconds a row and place, at most",
            Number{{.lowest = 0, .highest = kLongestRow, .open = true}});
  table.add("--in-place,!--no-in-place", options_.both_places,
            "measure every operation in place as well (on unless --no-in-place: then each in its usual form alone, a broadcast "
            "in place, the others out of place)");
  table.add(
      "--check,!--no-check", options_.check,
      "compare every element of every output in a pass of its own, with fresh data in each iteration (on unless --no-check)");
}

void BenchCommand::hand_over(GlobalOptions& global) const {
  if (options_.gpus.empty()) return;
  if (global.ranks.given())
    refuse(fmt::format("-g {} and -n {}: they say the same; give one of them", options_.gpus, global.ranks.text));
  parse_integer("-g", options_.gpus, 1, shm::kMaxLocalRanks);
  global.ranks.text = options_.gpus;
}

/// Returns the bytes that --sizes lists, or those between -b and -e.
std::vector<std::uint64_t> BenchCommand::sizes() const {
  const BenchOptions& of = options_;
  const auto text_of = [](const Given<std::uint64_t>& bytes) { return bytes.given() ? bytes.text : format_size(bytes); };
  for (const auto& [option, given] : {std::pair("-b", &of.first), {"-e", &of.last}, {"-f", &of.factor}}) {
    if (given->given() && of.sizes != kUsualSizes)
      refuse(fmt::format("{} {}: --sizes {} lists the sizes; give one of them", option, given->text, of.sizes));
  }
  if (!of.first.given() && !of.last.given() && !of.factor.given()) return parse_sizes(of.sizes);
  if (of.first > of.last) {
    refuse(of.last.given() ? fmt::format("-e {}: less than -b {}; try -e {}", of.last.text, text_of(of.first), text_of(of.first))
                           : fmt::format("-b {}: more than -e {}, the last size if none is given; try -e {}", of.first.text,
                                         text_of(of.last), of.first.text));
  }
  return bench::growing_sizes(of.first, of.last, of.factor);
}

/// Refuses options that would change nothing.
void BenchCommand::refuse_ignored(std::span<const Kind> kinds) const {
  if (options_.reduction != Reduction::sum && std::ranges::none_of(kinds, bench::reduces)) {
    refuse(fmt::format("--op {}: bench {} sums nothing; leave it out, or measure all_reduce, reduce or reduce_scatter",
                       options_.reduction.text, options_.ops));
  }
  for (const auto& [option, seconds] : {std::pair("--min-time", &options_.min_seconds), {"--max-time", &options_.max_seconds}}) {
    if (options_.iterations != 0 && seconds->given())
      refuse(fmt::format("{} {}: --iters {} says how long a row takes; give one of them", option, seconds->text,
                         options_.iterations.text));
  }
  if (options_.min_seconds.given() && options_.min_seconds > options_.max_seconds) {
    refuse(fmt::format("--min-time {}: --max-time {} ends a row before; try --max-time {}", options_.min_seconds.text,
                       options_.max_seconds, options_.min_seconds.text));
  }
}

void BenchCommand::validate(const GlobalOptions& global) {
  // Programs read what goes into a pipe by its columns, whatever COLUMNS says.
  columns_ = ::isatty(STDOUT_FILENO) == 1 ? global.columns : std::numeric_limits<std::size_t>::max();
  std::vector<Kind> kinds = parse_operations(options_.ops);
  refuse_ignored(kinds);
  const std::vector<std::uint64_t> sizes = this->sizes();
  pace_ = {.iterations = options_.iterations, .min_seconds = options_.min_seconds, .max_seconds = options_.max_seconds};

  if (global.ranks < 2 && std::find(kinds.begin(), kinds.end(), Kind::pingpong) != kinds.end()) {
    if (options_.ops != "all")
      refuse(fmt::format("bench pingpong: needs two ranks; try {} 2", options_.gpus.empty() ? "-n" : "-g"));
    std::erase(kinds, Kind::pingpong);
    notes_.push_back("# pingpong left out: it needs two ranks");
  }
  if (!tsprun::reduces(options_.reduction, options_.dtype) && std::ranges::any_of(kinds, bench::reduces)) {
    refuse(
        fmt::format("--op {}: not of {} (--dtype); numbers have sum, max, min and product, those with a fraction average, "
                    "integers and bool and, or and xor",
                    tsprun::name(options_.reduction.value), tsprun::name(options_.dtype.value)));
  }
  const bool half = options_.dtype == DType::bf16 || options_.dtype == DType::f16;
  const bool rounded = options_.reduction == Reduction::average || (half && options_.reduction == Reduction::sum);
  if (options_.check && global.reassociate && global.nodes > 1 && rounded && std::ranges::any_of(kinds, bench::reduces)) {
    refuse(
        fmt::format("--op {} of {} with --reassociate: nodes' partial results are rounded, so the bits can't be checked; "
                    "try --no-check",
                    tsprun::name(options_.reduction.value), tsprun::name(options_.dtype.value)));
  }
  const bool growing = options_.first.given() || options_.last.given() || options_.factor.given();
  bench::check_room(global, kinds, sizes, options_.dtype, growing ? "-e" : "--sizes");
  cases_ = bench::make_cases(kinds, sizes, options_.dtype, global.ranks);
  for (bench::Case& each : cases_) each.reduction = options_.reduction;
  if (cases_.empty()) {
    const std::uint64_t smallest = size_of(options_.dtype) * static_cast<std::uint64_t>(global.ranks);
    const bool by_bounds = options_.first.given() || options_.last.given();
    refuse(fmt::format("{0} {1}: too small to give each of {2} ranks an element of {3}; try {0} {4}",
                       by_bounds ? "-e" : "--sizes", by_bounds ? format_size(options_.last) : options_.sizes, global.ranks,
                       tsprun::name(options_.dtype.value), format_size(smallest)));
  }
}

/// Returns "0.41 (reduce) to 0.93 (all_gather)".
std::string shares(std::span<const std::pair<std::string_view, double>> busbw, double whole) {
  const auto [least, most] = std::ranges::minmax(busbw, {}, &std::pair<std::string_view, double>::second);
  const auto text = [&](const std::pair<std::string_view, double>& of) {
    return fmt::format("{:.2f} ({})", of.second / whole, of.first);
  };
  return least.first == most.first ? text(least) : fmt::format("{} to {}", text(least), text(most));
}

/// Prints a line of rank 0; a comment that is longer than the terminal's lines goes on below.
void BenchCommand::say(ReportSink& sink, const std::string& line) const {
  if (!line.starts_with('#')) return sink.line(line);
  for (const std::string& part : wrapped(line, columns_, "#   ")) sink.line(part);
}

/// Prints the lines above the tables. `cores`: those that this machine's ranks may use together; one rank may be bound to fewer.
void BenchCommand::print_head(Context& context, ReportSink& sink, int cores, bool several_machines,
                              const std::string& transports) const {
  const std::string title =
      fmt::format("tsprun bench: {} rank{} on {} core{}{}, transport {}", context.size(), context.size() == 1 ? "" : "s", cores,
                  cores == 1 ? "" : "s", several_machines ? " of node 0's machine and those of others" : "", transports);
  say(sink, bench::title_line(title));
  if (job_of(context).nodes > 1) {
    const std::string why = context.world().why_not_hierarchical(Op::all_gather);
    if (!why.empty()) say(sink, fmt::format("# no hierarchical algorithms: {}", why));
  }
  for (const std::string& note : notes_) say(sink, note);
}

/// Measures all cases on every rank, prints the tables, and sets "bench" in the report after each row. Throws what operations
/// throw, and on rank 0 Error(corrupt), after all rows, if any element was wrong.
void BenchCommand::measure(Context& context, ReportSink& sink, int cores, bool several_machines) const {
  bench::RankSubject subject(context, bench::buffers_for(bench::in_both_places(cases_)));
  const bool speaks = context.rank() == 0;
  const bench::TransportNames transports = bench::transport_names(context, subject);
  if (speaks) print_head(context, sink, cores, several_machines, transports.all);

  std::uint32_t seed = bench::fresh_seed(subject);
  const auto outcome = [&](const std::optional<Case>& form) -> std::optional<bench::Measurement> {
    if (!form) return std::nullopt;
    const std::uint64_t wrong = options_.check ? bench::check(subject, *form, seed) : bench::kUnchecked;
    seed += bench::kCheckIterations;
    return bench::Measurement{bench::measure(subject, *form, pace_), wrong};
  };
  bench::ResultTable table([&](const std::string& line) { say(sink, line); }, columns_);
  std::string wrong_rows;
  // Of a ping-pong two ranks alone move bytes.
  const auto is_largest = [&](const Case& which) {
    const bool all_move = which.kind != Kind::pingpong || context.size() == 2;
    return all_move &&
           std::ranges::none_of(cases_, [&](const Case& other) { return other.kind == which.kind && other.bytes > which.bytes; });
  };
  std::vector<std::pair<std::string_view, double>> busbw;  // of each operation at its largest size
  for (const Case& which : cases_) {
    bench::Measurements outcomes;
    const bool usually_in_place = which.kind == Kind::broadcast;
    if (options_.both_places || !usually_in_place) outcomes.out_of_place = outcome(bench::out_of_place(which));
    if (options_.both_places || usually_in_place) outcomes.in_place = outcome(bench::in_place(which));
    if (!speaks) continue;
    table.add(which, outcomes, transports.of(which.kind));
    if (is_largest(which)) {
      for (const std::optional<bench::Measurement>& each : {outcomes.out_of_place, outcomes.in_place}) {
        if (each) busbw.emplace_back(bench::name(which.kind), each->timing.busbw(which));
      }
    }
    sink.set("bench", table.rows());
    for (const std::optional<bench::Measurement>& each : {outcomes.out_of_place, outcomes.in_place}) {
      if (!each || each->wrong == 0 || each->wrong == bench::kUnchecked) continue;
      wrong_rows += fmt::format("{}{} of {} bytes: {} wrong", wrong_rows.empty() ? "" : "; ", bench::name(which.kind),
                                which.bytes, each->wrong);
    }
  }
  if (speaks) table.finish();
  if (const double copied = bench::copy_speed(subject); copied > 0 && speaks) {
    const std::uint64_t bytes = std::min(subject.input().size(), subject.output().size());
    sink.set("memcpy_gbps", copied);
    sink.set("memcpy_bytes", bytes);
    say(sink,
        fmt::format("# For comparison: a memcpy of {} bytes by {} has {:.2f} GB/s{}", bytes,
                    context.size() == 1 ? "this rank" : fmt::format("each of {} ranks at once", context.size()), copied,
                    busbw.empty() ? "" : fmt::format("; of that, busbw of the largest sizes is {}", shares(busbw, copied))));
  }
  if (!wrong_rows.empty()) throw Error(Cause::corrupt, fmt::format("results were wrong: {}", wrong_rows));
}

int BenchCommand::run(const GlobalOptions& global, Report& report) {
  report.root()["dtype"] = tsprun::name(options_.dtype.value);
  report.root()["bench"] = nlohmann::ordered_json::array();
  return run_model_job(global, report, [&, cores = machine::usable_cores()](Context& context, ReportSink& sink) {
    measure(context, sink, cores, global.several_machines);
  });
}

}  // namespace

std::unique_ptr<Command> make_bench() { return std::make_unique<BenchCommand>(); }

}  // namespace tsprun::detail::launcher
