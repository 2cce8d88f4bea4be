// The command `bench`: see bench.h.
#include "launcher/commands/bench.h"

#include "core/collectives/choice.h"
#include "launcher/bench/table.h"
#include "launcher/commands/bench_rank.h"
#include "launcher/refuse.h"
#include "layers/io/suggest.h"
#include "transport/cause.h"
#include "transport/machine.h"
#include "transport/shm/lane.h"
#include "transport/shm/node_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <set>
#include <span>

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

DType parse_dtype(const std::string& text) {
  const std::optional<DType> dtype = dtype_from_name(text);
  if (!dtype || *dtype == DType::byte) refuse(fmt::format("--dtype {}: f32, f64 and bf16 work", text));
  return *dtype;
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
            fmt::format("--mem-per-rank {} allows {}", global.mem_per_rank_text, whole_mebibytes(global.mem_per_rank))};
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

}  // namespace

void BenchCommand::add_options(CLI::App& app) {
  app.add_option("op", options_.ops, fmt::format("operations separated by commas, or all: {}", operation_names()))
      ->type_name("OP[,OP...]|all")
      ->required();
  app.add_option(
         "--sizes", options_.sizes,
         "bytes of the whole buffer (gathered output, unscattered input), separated by commas; a size that doesn't divide is "
         "rounded down, and left out at 0")
      ->type_name("SIZE[,SIZE...]")
      ->capture_default_str();
  app.add_option("--dtype", options_.dtype, "element type: f32, f64, bf16")->type_name("TYPE")->capture_default_str();
  app.add_option(
         "--iters", options_.iterations,
         "iterations a row, out of place and again in place; auto: at least 20 and --min-time, unless --max-time ends them")
      ->type_name("auto|N")
      ->capture_default_str();
  app.add_option("--min-time", options_.min_seconds, "with --iters auto: seconds a row and place, at least")
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("--max-time", options_.max_seconds, "with --iters auto: seconds a row and place, at most")
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_flag(
      "--in-place,!--no-in-place", options_.both_places,
      "measure every operation in place as well (on unless --no-in-place: then each in its usual form alone, a broadcast "
      "in place, the others out of place)");
  app.add_flag(
      "--check,!--no-check", options_.check,
      "compare every element of every output in a pass of its own, with fresh data in each iteration (on unless --no-check)");
}

void BenchCommand::validate(const GlobalOptions& global) {
  std::vector<Kind> kinds = parse_operations(options_.ops);
  const std::vector<std::uint64_t> sizes = parse_sizes(options_.sizes);
  dtype_ = parse_dtype(options_.dtype);
  if (options_.iterations != "auto") {
    if (options_.iterations.find_first_not_of("0123456789-") != std::string::npos || options_.iterations.empty()) {
      refuse(fmt::format("--iters {}: not a number; auto and 1 to {} work", options_.iterations, kMostIterations));
    }
    pace_.iterations = static_cast<std::uint64_t>(parse_integer("--iters", options_.iterations, 1, kMostIterations));
  }
  pace_.min_seconds = options_.min_seconds;
  pace_.max_seconds = options_.max_seconds;
  if (!(pace_.min_seconds >= 0 && pace_.min_seconds <= kLongestRow)) {
    refuse(fmt::format("--min-time {}: 0 to {} seconds work; try 0.3", pace_.min_seconds, kLongestRow));
  }
  if (!(pace_.max_seconds > 0 && pace_.max_seconds <= kLongestRow)) {
    refuse(fmt::format("--max-time {}: more than 0 and at most {} seconds work; try 2", pace_.max_seconds, kLongestRow));
  }

  if (global.ranks < 2 && std::find(kinds.begin(), kinds.end(), Kind::pingpong) != kinds.end()) {
    if (options_.ops != "all") refuse("bench pingpong: needs two ranks; try -n 2");
    std::erase(kinds, Kind::pingpong);
    notes_.push_back("# pingpong left out: it needs two ranks");
  }
  check_memory(global, kinds, sizes, dtype_);
  cases_ = bench::make_cases(kinds, sizes, dtype_, global.ranks);
  if (cases_.empty()) {
    const std::uint64_t smallest = size_of(dtype_) * static_cast<std::uint64_t>(global.ranks);
    refuse(fmt::format("--sizes {}: too small to give each of {} ranks an element of {}; try --sizes {}", options_.sizes,
                       global.ranks, options_.dtype, format_size(smallest)));
  }
}

int BenchCommand::run(const GlobalOptions& global, Report& report) {
  report.root()["dtype"] = tsprun::name(dtype_);
  report.root()["bench"] = nlohmann::ordered_json::array();
  JobSpec spec;
  spec.global = &global;
  spec.rank_main = [this, cores = machine::usable_cores(), several_machines = global.several_machines](Context& context,
                                                                                                       ReportSink& sink) {
    return bench_rank(context, sink,
                      {.cases = cases_,
                       .pace = pace_,
                       .check = options_.check,
                       .both_places = options_.both_places,
                       .notes = notes_,
                       .cores = cores,
                       .several_machines = several_machines});
  };
  return run_job(spec, report);
}

std::unique_ptr<Command> make_bench() { return std::make_unique<BenchCommand>(); }

}  // namespace tsprun::detail::launcher
