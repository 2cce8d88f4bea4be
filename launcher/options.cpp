#include "launcher/options.h"

#include "core/fault/rank_faults.h"
#include "launcher/refuse.h"
#include "transport/bootstrap/job_description.h"
#include "transport/bootstrap/store.h"
#include "transport/cause.h"
#include "transport/machine.h"
#include "transport/verbs/device.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <sys/resource.h>

namespace tsprun::detail::launcher {

namespace {

constexpr std::uint64_t kSmallestBudget = std::uint64_t{1} << 20;
constexpr std::uint64_t kLargestBudget = std::uint64_t{64} << 30;
constexpr double kLongestTimeout = 86400 * 365;
constexpr int kMostThreads = 1024;
/// Descriptors that the launcher holds however many ranks there are.
constexpr std::uint64_t kOwnDescriptors = 32;
constexpr std::array<std::string_view, 7> kLogLevels = {"trace", "debug", "info", "warn", "error", "critical", "off"};

std::uint64_t hard_limit_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_max;
}

void validate_ranks(GlobalOptions& options, RankUse use) {
  const bool by_number = !options.ranks_text.empty();
  const bool by_layout = !options.layout_text.empty();
  const std::int64_t most = use == RankUse::on_paper ? kMostRanksOnPaper : shm::kMaxLocalRanks;
  if (by_number) options.ranks = static_cast<int>(parse_integer("-n", options.ranks_text, 1, most));
  if (by_layout) {
    options.layout = Layout::parse(options.layout_text);
    const int product = options.layout.ranks();
    if (by_number && product != options.ranks) {
      refuse(fmt::format("--layout {} needs {} ranks, but -n says {}; try -n {} or --layout {}", options.layout_text, product,
                         options.ranks, product, Layout::tsp(options.ranks).print()));
    }
    if (product > most) {
      refuse(fmt::format("--layout {} needs {} ranks; at most {} {}", options.layout_text, product, most,
                         use == RankUse::on_paper ? "are counted" : "fit on one node"));
    }
    options.ranks = product;
  } else {
    if (!by_number) options.ranks = 1;
    options.layout = Layout::tsp(options.ranks);
  }
}

/// Returns how the user chose the number of ranks, for messages.
std::string ranks_option(const GlobalOptions& options) {
  if (options.ranks_text.empty() && !options.layout_text.empty()) return fmt::format("--layout {}", options.layout_text);
  return fmt::format("-n {}", options.ranks);
}

/// Parses on which nodes the ranks are, and which tsprun starts them.
void validate_nodes(GlobalOptions& options, RankUse use) {
  const bool several = !options.nnodes_text.empty();
  if (!options.nodes_text.empty()) {
    if (several)
      refuse(fmt::format("--nodes {}: it pretends that there are nodes, --nnodes names real ones; give one", options.nodes_text));
    const std::int64_t most = use == RankUse::jobs ? shm::kMaxLocalRanks : options.ranks;
    options.nodes = static_cast<int>(parse_integer("--nodes", options.nodes_text, 1, most));
  }
  if (!several) {
    if (!options.node_rank_text.empty()) refuse(fmt::format("--node-rank {}: it goes with --nnodes K", options.node_rank_text));
    if (!options.rendezvous.empty()) refuse(fmt::format("--rendezvous {}: it goes with --nnodes K", options.rendezvous));
    return;
  }
  options.nodes = static_cast<int>(parse_integer("--nnodes", options.nnodes_text, 1, options.ranks));
  if (options.node_rank_text.empty()) {
    refuse(fmt::format("--nnodes {}: which one is this? try --node-rank 0", options.nnodes_text));
  }
  options.node_rank = static_cast<int>(parse_integer("--node-rank", options.node_rank_text, 0, options.nodes - 1));
  if (options.rendezvous.empty()) {
    refuse(
        fmt::format("--nnodes {}: where do they meet? try --rendezvous HOST:29500, an address of node 0", options.nnodes_text));
  }
  bootstrap::parse_host_port("--rendezvous", options.rendezvous);
  options.several_machines = options.nodes > 1;
}

/// Returns how many descriptors this launcher holds in a job of so many ranks: its own, each node's memory, each rank's pidfd and
/// two pipes. With a store also each rank's bell and, where the store is served, a link to each rank while they meet, and to each
/// other launcher.
std::uint64_t descriptors(const GlobalOptions& options, int ranks) {
  const bool alone = !options.several_machines;
  const int here = alone ? ranks : block_of(ranks, options.nodes, options.node_rank).count;
  int count = (alone ? options.nodes : 1) + 3 * here;
  if (needs_store(options)) {
    count += here;
    if (alone) count += ranks;
    else if (options.node_rank == 0) count += ranks + options.nodes - 1;
  }
  return kOwnDescriptors + static_cast<std::uint64_t>(count);
}

void validate_against_machine(const GlobalOptions& options, int processes_per_rank) {
  const auto ranks = static_cast<std::uint64_t>(ranks_here(options).count);
  const std::uint64_t processes = ranks * static_cast<std::uint64_t>(processes_per_rank);
  const std::uint64_t process_limit = machine::limit_processes();
  if (processes + 1 > process_limit) {
    const std::uint64_t nearest =
        (process_limit - std::min<std::uint64_t>(process_limit, 1)) / static_cast<std::uint64_t>(processes_per_rank);
    refuse(fmt::format("{}: needs {} processes, `ulimit -u` allows {}; try -n {}, or raise the limit", ranks_option(options),
                       processes + 1, process_limit, std::max<std::uint64_t>(1, nearest)));
  }
  const std::uint64_t needed = descriptors(options, options.ranks);
  const std::uint64_t descriptor_limit = hard_limit_open_files();
  if (needed > descriptor_limit) {
    int nearest = options.ranks;
    while (nearest > options.nodes && descriptors(options, nearest) > descriptor_limit) --nearest;
    refuse(fmt::format("{}: needs {} open files, `ulimit -Hn` allows {}; try -n {}, or raise the limit", ranks_option(options),
                       needed, descriptor_limit, nearest));
  }
  const std::uint64_t available = machine::available_memory();
  if (options.mem_per_rank != 0 && available != 0 && options.mem_per_rank > available / ranks) {
    const std::uint64_t nearest = std::max(kSmallestBudget, (available / ranks) >> 20 << 20);
    refuse(fmt::format("--mem-per-rank {}: {} ranks could take {} MiB together, {} MiB are available; try --mem-per-rank {}",
                       options.mem_per_rank_text, ranks, (options.mem_per_rank * ranks) >> 20, available >> 20,
                       format_size(nearest)));
  }
}

/// Returns by how many bits a size's suffix shifts; "K", "KB" and "KiB" mean the same. -1: it is no suffix.
int shift_of(std::string_view suffix) {
  if (suffix.empty() || suffix == "B") return 0;
  constexpr std::string_view kLetters = "KMGT";
  const std::size_t letter = kLetters.find(static_cast<char>(std::toupper(static_cast<unsigned char>(suffix.front()))));
  suffix.remove_prefix(1);
  const bool whole = suffix.empty() || suffix == "B" || suffix == "b" || suffix == "iB" || suffix == "ib";
  return letter == std::string_view::npos || !whole ? -1 : static_cast<int>(letter + 1) * 10;
}

void validate_faults(GlobalOptions& options, RankUse use) {
  options.faults.clear();
  for (const std::string& text : options.fault_texts)
    options.faults.push_back(fault::parse(text, use == RankUse::jobs ? 0 : options.ranks));
  check_faults(options.faults);
}

}  // namespace

void add_global_options(CLI::App& app, GlobalOptions& options) {
  const std::string group = "Global options (before or after the command)";
  app.add_option("-n,--ranks", options.ranks_text, "ranks in all; default: the product of --layout, else 1")
      ->type_name("N")
      ->group(group);
  app.add_option("--layout", options.layout_text,
                 "axis=degree,…, outermost first; axes dp, tp, sp, tsp, zero3; -n N alone means tsp=N")
      ->type_name("SPEC")
      ->group(group);
  app.add_option("--sp", options.sequence_text, "how sp's ranks attend to each other's tokens: gather, ring, ulysses")
      ->type_name("WAY")
      ->capture_default_str()
      ->group(group);
  app.add_option("--tp", options.tensor_text,
                 "how tp's ranks share tokens: plain (all have all), sequence (Megatron's sequence parallelism)")
      ->type_name("WAY")
      ->capture_default_str()
      ->group(group);
  app.add_option("--intra", options.intra, "transport within a node: auto, shm, tcp")
      ->type_name("KIND")
      ->capture_default_str()
      ->group(group);
  app.add_option("--inter", options.inter,
                 "transport across nodes: auto, verbs, tcp; auto: verbs where both ends have an active RDMA device, else tcp")
      ->type_name("KIND")
      ->capture_default_str()
      ->group(group);
  app.add_option("--tls", options.tls,
                 "encrypt and authenticate what travels by tcp (TLS 1.3, the secret as its key): auto, on, off; auto: between "
                 "machines (--nnodes), not within one. RDMA isn't encrypted")
      ->type_name("WHEN")
      ->capture_default_str()
      ->group(group);
  app.add_option("--rdma", options.rdma,
                 "RDMA device of this tsprun's ranks; default: local rank i takes the i-th active one modulo their number")
      ->type_name("DEVICE[:PORT[:GID]]")
      ->group(group);
  app.add_option("--nodes", options.nodes_text, "pretend that the ranks sit on K nodes of this machine, which share no memory")
      ->type_name("K")
      ->group(group);
  app.add_option("--nnodes", options.nnodes_text, "real nodes, a tsprun on each")->type_name("K")->group(group);
  app.add_option("--node-rank", options.node_rank_text, "which of them this is, from 0")->type_name("I")->group(group);
  app.add_option("--rendezvous", options.rendezvous, "where they meet: an address of node 0 and a free port")
      ->type_name("HOST:PORT")
      ->group(group);
  app.add_option(
         "--secret-file", options.secret_file,
         "what all nodes must know, 16 bytes at least; default: $TSP_SECRET, else ~/.config/tsprun/secret, made on first use")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--mem-per-rank", options.mem_per_rank_text, "hard budget of a rank's heap, such as 512M; default: none")
      ->type_name("SIZE")
      ->group(group);
  app.add_option("--timeout", options.timeout_text, "deadline of waits, in seconds")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->group(group);
  app.add_option("--bind", options.bind_text, "pin ranks: core, none; default: core where each rank has a core of its own")
      ->type_name("HOW")
      ->group(group);
  app.add_option("--threads", options.threads_text,
                 "compute threads a rank; they never change a bit of the result; default: this node's cores over its ranks")
      ->type_name("T")
      ->group(group);
  app.add_option("--fault", options.fault_texts,
                 "inject a fault, such as kill:rank=3,step=12 or delay:from=0,to=1,ms=20; repeatable")
      ->type_name("SPEC")
      ->allow_extra_args(false)
      ->group(group);
  app.add_flag("--reassociate", options.reassociate,
               "allow reductions whose order depends on the nodes: faster across many adapters, no longer bit-identical")
      ->group(group);
  app.add_flag("--verify", options.verify, "checksum every payload (over tcp they always are)")->group(group);
  app.add_option("--trace", options.trace,
                 "write a trace of all ranks for Perfetto to FILE (-: stdout), gzipped if it ends in .gz")
      ->type_name("FILE")
      ->group(group);
  add_trace_options(app, options.trace_options, group);
  app.add_option("--json", options.json, "write the report for machines to FILE; -: to stdout, and everything else to stderr")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--log-level", options.log_level, "trace, debug, info, warn, error, critical, off")
      ->type_name("LEVEL")
      ->capture_default_str()
      ->group(group);
  app.add_flag("-q,--quiet", options.quiet, "only results, errors and verdicts")->group(group);
  app.add_flag("--no-prefix", options.no_prefix, "don't put [rank] before the lines of ranks")->group(group);
}

void validate_global(GlobalOptions& options, RankUse use, int processes_per_rank) {
  validate_ranks(options, use);

  validate_nodes(options, use);

  if (options.intra != "auto" && options.intra != "shm" && options.intra != "tcp") {
    refuse(fmt::format("--intra {}: there is no such transport within a node; auto, shm and tcp work", options.intra));
  }
  if (options.inter != "auto" && options.inter != "verbs" && options.inter != "tcp") {
    refuse(fmt::format("--inter {}: there is no such transport across nodes; auto, verbs and tcp work", options.inter));
  }
  if (options.tls != "auto" && options.tls != "on" && options.tls != "off") {
    refuse(fmt::format("--tls {}: auto, on and off work", options.tls));
  }
  if (!options.rdma.empty()) {
    verbs::DeviceChoice::parse(options.rdma);
    if (options.rdma.size() >= sizeof bootstrap::JobDescription::rdma) {
      refuse(fmt::format("--rdma {}: no device has so long a name; `tsprun doctor` lists those that there are", options.rdma));
    }
    if (options.inter == "tcp")
      refuse(fmt::format("--rdma {}: --inter tcp uses no RDMA device; leave one of them out", options.rdma));
  }
  if (!options.mem_per_rank_text.empty()) {
    options.mem_per_rank = parse_size("--mem-per-rank", options.mem_per_rank_text);
    if (options.mem_per_rank < kSmallestBudget || options.mem_per_rank > kLargestBudget) {
      refuse(fmt::format("--mem-per-rank {}: {} to {} work; try {}", options.mem_per_rank_text, format_size(kSmallestBudget),
                         format_size(kLargestBudget),
                         format_size(std::clamp(options.mem_per_rank, kSmallestBudget, kLargestBudget))));
    }
  }

  double seconds = 0;
  const std::string& timeout = options.timeout_text;
  const auto [end, error] = std::from_chars(timeout.data(), timeout.data() + timeout.size(), seconds);
  if (error != std::errc{} || end != timeout.data() + timeout.size() || !std::isfinite(seconds)) {
    refuse(fmt::format("--timeout {}: not a number of seconds; try --timeout 30", timeout));
  }
  if (seconds < 0.1 || seconds > kLongestTimeout) {
    refuse(fmt::format("--timeout {}: 0.1 to {:.0f} seconds work; try --timeout {}", timeout, kLongestTimeout,
                       seconds < 0.1 ? "0.1" : fmt::format("{:.0f}", kLongestTimeout)));
  }
  options.timeout_ns = static_cast<std::uint64_t>(seconds * 1e9);

  validate_faults(options, use);
  validate_trace_options(options.trace_options, options.trace);

  if (options.bind_text.empty()) {
    options.bind = Bind::automatic;
  } else if (options.bind_text == "core") {
    options.bind = Bind::core;
  } else if (options.bind_text == "none") {
    options.bind = Bind::none;
  } else {
    refuse(fmt::format("--bind {}: core and none work", options.bind_text));
  }

  options.threads = std::max(1, machine::usable_cores() / ranks_here(options).count);
  if (!options.threads_text.empty()) {
    options.threads = static_cast<int>(parse_integer("--threads", options.threads_text, 1, kMostThreads));
  }

  if (std::find(kLogLevels.begin(), kLogLevels.end(), options.log_level) == kLogLevels.end()) {
    refuse(fmt::format("--log-level {}: trace, debug, info, warn, error, critical and off work", options.log_level));
  }
  if (use == RankUse::job) validate_against_machine(options, processes_per_rank);
}

std::vector<std::string> ignored_options(const GlobalOptions& options) {
  std::vector<std::string> ignored;
  if (!options.secret_file.empty() && !options.several_machines) {
    ignored.push_back(fmt::format("--secret-file {}: no effect: only tspruns that meet (--nnodes) prove a secret to each other",
                                  options.secret_file));
  }
  if (options.tls == "on" && !needs_store(options))
    ignored.push_back("--tls on: no effect: all ranks talk over shared memory; see --nnodes and --intra tcp");
  if (options.nodes > 1) return ignored;
  const auto across_nodes = [&](const char* option, const std::string& value) {
    ignored.push_back(fmt::format("{} {}: no effect: all ranks share one node; see --nnodes and --nodes", option, value));
  };
  if (options.inter != "auto") across_nodes("--inter", options.inter);
  if (!options.rdma.empty()) across_nodes("--rdma", options.rdma);
  return ignored;
}

RankBlock ranks_here(const GlobalOptions& options) {
  return options.several_machines ? block_of(options.ranks, options.nodes, options.node_rank) : RankBlock{0, options.ranks};
}

bool needs_store(const GlobalOptions& options) { return options.ranks > 1 && (options.nodes > 1 || options.intra == "tcp"); }

bool uses_tls(const GlobalOptions& options) { return options.tls == "on" || (options.tls == "auto" && options.several_machines); }

std::uint64_t parse_size(const std::string& option, const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const int shift = shift_of(suffix);
  if (error == std::errc::invalid_argument || shift < 0) {
    refuse(fmt::format("{} {}: not a size; write bytes or use K, M, G (powers of 1024), such as 64K", option, text));
  }
  if (error == std::errc::result_out_of_range || value > (UINT64_MAX >> shift)) {
    refuse(fmt::format("{} {}: too large for any memory; try 16G", option, text));
  }
  return value << shift;
}

std::string format_size(std::uint64_t bytes) {
  static constexpr std::string_view kSuffixes[] = {"", "K", "M", "G", "T"};
  std::size_t suffix = 0;
  while (bytes != 0 && bytes % 1024 == 0 && suffix + 1 < std::size(kSuffixes)) {
    bytes /= 1024;
    ++suffix;
  }
  return fmt::format("{}{}", bytes, kSuffixes[suffix]);
}

std::int64_t parse_integer(const std::string& option, const std::string& text, std::int64_t lowest, std::int64_t highest) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size();
  if (error == std::errc::invalid_argument || !whole) {
    refuse(fmt::format("{} {}: not a whole number; {} to {} work", option, text, lowest, highest));
  }
  const bool too_large = error == std::errc::result_out_of_range && text.front() != '-';
  const bool too_small = error == std::errc::result_out_of_range && text.front() == '-';
  if (too_large || value > highest) refuse(fmt::format("{} {}: {} to {} work; try {}", option, text, lowest, highest, highest));
  if (too_small || value < lowest) refuse(fmt::format("{} {}: {} to {} work; try {}", option, text, lowest, highest, lowest));
  return value;
}

}  // namespace tsprun::detail::launcher
