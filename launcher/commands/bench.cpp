// `tsprun bench OP[,OP…]|all`: micro-benchmarks of messages and collectives, with nccl-tests' columns.
// How times are measured is in launcher/bench/measure.h.
#include "core/collectives/choice.h"
#include "launcher/bench/measure.h"
#include "launcher/bench/table.h"
#include "launcher/commands/command.h"
#include "launcher/refuse.h"
#include "transport/cause.h"
#include "transport/factory.h"
#include "transport/machine.h"
#include "transport/shm/lane.h"
#include "transport/shm/node_memory.h"
#include "transport/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

using bench::BufferBytes;
using bench::Case;
using bench::Kind;

constexpr std::int64_t kMostIterations = 1'000'000;
constexpr double kLongestRow = 3600;

/// Messages that may be in flight on a lane, each with a copy of its small payload in the sender's heap.
constexpr std::uint64_t kUnderWay = shm::kSlots;
constexpr std::uint64_t kSmallestCopy = 1024;

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

std::vector<std::uint64_t> parse_sizes(const std::string& text) {
  std::vector<std::uint64_t> sizes;
  for (const std::string& size : bench::split_list(text)) sizes.push_back(parse_size("--sizes", size));
  return sizes;
}

std::string whole_mebibytes(std::uint64_t bytes) {
  return bytes < (std::uint64_t{10} << 20) ? fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20))
                                           : fmt::format("{} MiB", (bytes + (1 << 20) - 1) >> 20);
}

/// Returns the bytes that a rank's heap must hold: the buffers, and copies of small payloads in flight, whose sizes are rounded
/// up to powers of two. UINT64_MAX if the sum overflows.
std::uint64_t heap_need(std::span<const Case> cases) {
  const BufferBytes buffers = bench::buffers_for(bench::in_both_places(cases));
  std::set<std::uint64_t> copies = {kSmallestCopy};
  for (const Case& each : cases) {
    for (const std::uint64_t payload : {each.bytes, each.count() * size_of(each.dtype)}) {
      if (payload <= kStagedBytes) copies.insert(std::bit_ceil(std::max(kSmallestCopy, payload)));
    }
  }
  const std::uint64_t beside = kUnderWay * std::accumulate(copies.begin(), copies.end(), std::uint64_t{0});
  const bool countable = buffers.input < UINT64_MAX / 4 && buffers.output < UINT64_MAX / 4;
  return countable ? buffers.total() + beside : UINT64_MAX;
}

/// Most bytes that one rank may take, and which option or limit says so.
struct Room {
  std::uint64_t bytes;
  std::string why;
};

Room room_for_rank(const GlobalOptions& global) {
  const auto ranks = static_cast<std::uint64_t>(global.ranks);
  const std::uint64_t available = machine::available_memory();
  Room room{shm::default_heap_bytes(), fmt::format("a heap holds {}", whole_mebibytes(shm::default_heap_bytes()))};
  if (available != 0 && available / ranks < room.bytes) {
    room = {available / ranks,
            fmt::format("{} are available for {} rank{}", whole_mebibytes(available), ranks, ranks == 1 ? "" : "s")};
  }
  if (global.mem_per_rank != 0 && global.mem_per_rank < room.bytes) {
    room = {global.mem_per_rank,
            fmt::format("--mem-per-rank {} allows {}", global.mem_per_rank.text, whole_mebibytes(global.mem_per_rank))};
  }
  return room;
}

void check_memory(const GlobalOptions& global, std::span<const Kind> kinds, std::span<const std::uint64_t> sizes, DType dtype) {
  const Room room = room_for_rank(global);
  const auto need_for = [&](std::span<const std::uint64_t> some) {
    return heap_need(bench::make_cases(kinds, some, dtype, global.ranks));
  };
  const std::uint64_t need = need_for(sizes);
  if (need <= room.bytes) return;
  const std::uint64_t largest = *std::max_element(sizes.begin(), sizes.end());
  std::uint64_t nearest = 1;
  for (std::uint64_t twice = 2; twice <= largest && need_for({&twice, 1}) <= room.bytes; twice *= 2) {
    nearest = twice;
    if (twice > UINT64_MAX / 2) break;
  }
  const auto ranks = static_cast<std::uint64_t>(global.ranks);
  const std::string together = need > UINT64_MAX / ranks ? "more than 2^64 bytes" : whole_mebibytes(need * ranks);
  refuse(fmt::format("--sizes {}: every rank needs {} ({} together), {}; try --sizes {}", format_size(largest),
                     whole_mebibytes(need), together, room.why, format_size(nearest)));
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

class RankSubject final : public bench::Subject {
 public:
  RankSubject(Context& context, bench::BufferBytes need)
      : context_(context),
        world_(context.world()),
        input_(context.allocate(need.input, "bench input")),
        output_(context.allocate(need.output, "bench output")) {}

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  void barrier() override { world_.barrier(); }
  void send(std::span<const double> values, int to) override { world_.send(ConstBuffer(values), to); }
  void receive(std::span<double> values, int from) override { world_.recv(Buffer(values), from); }
  std::span<std::byte> input() override { return input_.bytes(); }
  std::span<std::byte> output() override { return output_.bytes(); }
  void tick() override { context_.tick(); }

  void run(const Case& which, std::uint64_t times) override {
    const auto [in, out] = bench::buffers_of(*this, which);
    const bool copies = which.place == bench::Place::out_of_place && rank() == 0;
    for (std::uint64_t i = 0; i < times; ++i) {
      if (copies) std::memcpy(out.data, in.data, in.bytes());
      run_once(which, in, out);
    }
  }

 private:
  void run_once(const Case& which, ConstBuffer in, Buffer out) {
    switch (which.kind) {
      case Kind::pingpong:
        if (rank() == 0) world_.send(in, 1);
        if (rank() < 2) world_.recv(out, 1 - rank());
        if (rank() == 1) world_.send(in, 0);
        break;
      case Kind::broadcast: world_.broadcast(out, 0); break;
      case Kind::all_gather: world_.all_gather(in, out); break;
      case Kind::reduce_scatter: world_.reduce_scatter(in, out, which.reduction); break;
      case Kind::all_reduce: world_.all_reduce(in, out, which.reduction); break;
      case Kind::all_to_all: world_.all_to_all(in, out); break;
      case Kind::reduce: world_.reduce(in, rank() == 0 ? out : Buffer(), which.reduction, 0); break;
      case Kind::barrier: world_.barrier(); break;
    }
  }

  Context& context_;
  Communicator& world_;
  HeapBlock input_;
  HeapBlock output_;
};

/// Names of the transports that carry messages, for the head and the rows of the table.
struct TransportNames {
  std::string all;   ///< all transports between any two ranks: "shm+tcp"
  std::string pair;  ///< the transport between ranks 0 and 1, which alone carries a ping-pong

  const std::string& of(Kind kind) const { return kind == Kind::pingpong ? pair : all; }
};

/// Returns the names on rank 0, nothing on others. A rank knows only its own transports, so each sends rank 0 a bit for each that
/// it uses.
TransportNames transport_names(Context& context, bench::Subject& subject) {
  if (context.size() < 2) return {"none", "none"};
  unsigned used = 0;
  for (int peer = 0; peer < context.size(); ++peer) {
    if (peer == context.rank()) continue;
    const auto place = std::ranges::find(kFactories, engine_of(context).route(peer).kind, &Factory::name);
    used |= 1U << (place - kFactories.begin());
  }
  double told = used;
  if (subject.rank() != 0) {
    subject.send({&told, 1}, 0);
    return {};
  }
  for (int from = 1; from < subject.size(); ++from) {
    subject.receive({&told, 1}, from);
    used |= static_cast<unsigned>(told);
  }
  std::string all;
  for (std::size_t i = 0; i < kFactories.size(); ++i) {
    if ((used >> i & 1U) != 0) all += fmt::format("{}{}", all.empty() ? "" : "+", kFactories[i]->name);
  }
  return {all, std::string(engine_of(context).route(1).kind)};
}

/// Returns a seed that is different in every run and the same on all ranks.
std::uint32_t fresh_seed(bench::Subject& subject) {
  double seed = static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count() & 0xFFFF'FFFF);
  if (subject.rank() != 0) {
    subject.receive({&seed, 1}, 0);
  } else {
    for (int to = 1; to < subject.size(); ++to) subject.send({&seed, 1}, to);
  }
  return static_cast<std::uint32_t>(seed);
}

/// The options of `bench`, each with its default.
struct BenchOptions {
  std::string ops;
  std::string sizes = "8,1K,64K,1M,64M";
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
                         "tsprun -n 2 --intra tcp --json report.json bench pingpong"}};
  }
  void declare(OptionTable& table) override;
  void validate(const GlobalOptions& global) override;
  int run(const GlobalOptions& global, Report& report) override;

 private:
  void print_head(Context& context, ReportSink& sink, int cores, bool several_machines, const std::string& transports) const;
  void measure(Context& context, ReportSink& sink, int cores, bool several_machines) const;

  BenchOptions options_;
  // Results of validation.
  std::vector<bench::Case> cases_;
  bench::Pace pace_;
  std::vector<std::string> notes_;  // comment lines that say which rows were left out, and why
};

void BenchCommand::declare(OptionTable& table) {
  table.add("op OP[,OP...]|all", options_.ops, fmt::format("operations separated by commas, or all: {}", operation_names()),
            Trait::required);
  table.add("--sizes SIZE[,SIZE...]", options_.sizes,
            "bytes of the whole buffer (gathered output, unscattered input), separated by commas; a size that doesn't divide is "
            "rounded down, and left out at 0");
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

void BenchCommand::validate(const GlobalOptions& global) {
  std::vector<Kind> kinds = parse_operations(options_.ops);
  const std::vector<std::uint64_t> sizes = parse_sizes(options_.sizes);
  pace_ = {.iterations = options_.iterations, .min_seconds = options_.min_seconds, .max_seconds = options_.max_seconds};

  if (global.ranks < 2 && std::find(kinds.begin(), kinds.end(), Kind::pingpong) != kinds.end()) {
    if (options_.ops != "all") refuse("bench pingpong: needs two ranks; try -n 2");
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
  check_memory(global, kinds, sizes, options_.dtype);
  cases_ = bench::make_cases(kinds, sizes, options_.dtype, global.ranks);
  for (bench::Case& each : cases_) each.reduction = options_.reduction;
  if (cases_.empty()) {
    const std::uint64_t smallest = size_of(options_.dtype) * static_cast<std::uint64_t>(global.ranks);
    refuse(fmt::format("--sizes {}: too small to give each of {} ranks an element of {}; try --sizes {}", options_.sizes,
                       global.ranks, tsprun::name(options_.dtype.value), format_size(smallest)));
  }
}

/// Prints the lines above the tables. `cores`: those that this machine's ranks may use together; one rank may be bound to fewer.
void BenchCommand::print_head(Context& context, ReportSink& sink, int cores, bool several_machines,
                              const std::string& transports) const {
  const std::string who =
      fmt::format("tsprun bench: {} rank{} on {} core{}{}, transport {}", context.size(), context.size() == 1 ? "" : "s", cores,
                  cores == 1 ? "" : "s", several_machines ? " of node 0's machine and those of others" : "", transports);
  sink.line(bench::title_line(who));
  if (job_of(context).nodes > 1) {
    const std::string why = context.world().why_not_hierarchical(Op::all_gather);
    if (!why.empty()) sink.line(fmt::format("# no hierarchical algorithms: {}", why));
  }
  for (const std::string& note : notes_) sink.line(note);
}

/// Measures all cases on every rank, prints the tables, and sets "bench" in the report after each row. Throws what operations
/// throw, and on rank 0 Error(corrupt), after all rows, if any element was wrong.
void BenchCommand::measure(Context& context, ReportSink& sink, int cores, bool several_machines) const {
  RankSubject subject(context, bench::buffers_for(bench::in_both_places(cases_)));
  const bool speaks = context.rank() == 0;
  const TransportNames transports = transport_names(context, subject);
  if (speaks) print_head(context, sink, cores, several_machines, transports.all);

  std::uint32_t seed = fresh_seed(subject);
  const auto outcome = [&](const std::optional<Case>& form) -> std::optional<bench::Outcome> {
    if (!form) return std::nullopt;
    const std::uint64_t wrong = options_.check ? bench::check(subject, *form, seed) : bench::kUnchecked;
    seed += bench::kCheckIterations;
    return bench::Outcome{bench::measure(subject, *form, pace_), wrong};
  };
  bench::Table table([&](const std::string& line) { sink.line(line); });
  std::string wrong_rows;
  for (const Case& which : cases_) {
    bench::Outcomes outcomes;
    const bool usually_in_place = which.kind == Kind::broadcast;
    if (options_.both_places || !usually_in_place) outcomes.out_of_place = outcome(bench::out_of_place(which));
    if (options_.both_places || usually_in_place) outcomes.in_place = outcome(bench::in_place(which));
    if (!speaks) continue;
    table.add(which, outcomes, transports.of(which.kind));
    sink.set("bench", table.rows());
    for (const std::optional<bench::Outcome>& each : {outcomes.out_of_place, outcomes.in_place}) {
      if (!each || each->wrong == 0 || each->wrong == bench::kUnchecked) continue;
      wrong_rows += fmt::format("{}{} of {} bytes: {} wrong", wrong_rows.empty() ? "" : "; ", bench::name(which.kind),
                                which.bytes, each->wrong);
    }
  }
  if (speaks) table.finish();
  if (!wrong_rows.empty()) throw Error(Cause::corrupt, fmt::format("results were wrong: {}", wrong_rows));
}

int BenchCommand::run(const GlobalOptions& global, Report& report) {
  report.root()["dtype"] = tsprun::name(options_.dtype.value);
  report.root()["bench"] = nlohmann::ordered_json::array();
  JobSpec spec;
  spec.global = &global;
  spec.rank_main = [this, cores = machine::usable_cores(), several_machines = global.several_machines](Context& context,
                                                                                                       ReportSink& sink) {
    measure(context, sink, cores, several_machines);
    return 0;
  };
  return run_job(spec, report);
}

}  // namespace

std::unique_ptr<Command> make_bench() { return std::make_unique<BenchCommand>(); }

}  // namespace tsprun::detail::launcher
