// Declares and checks the global options, also against limits of this machine.
#include "launcher/options.h"

#include "core/fault/rank_faults.h"
#include "launcher/refuse.h"
#include "transport/bootstrap/job_description.h"
#include "transport/bootstrap/store.h"
#include "transport/factory.h"
#include "transport/machine.h"
#include "transport/number.h"
#include "transport/verbs/device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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

std::uint64_t hard_limit_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_max;
}

void validate_ranks(GlobalOptions& options, RankUse use) {
  const bool by_number = options.ranks.given();
  const bool by_layout = options.layout.given();
  const std::int64_t most = use == RankUse::on_paper ? kMostRanksOnPaper : shm::kMaxLocalRanks;
  if (by_number) options.ranks = static_cast<int>(parse_integer("-n", options.ranks.text, 1, most));
  if (by_layout) {
    options.layout = Layout::parse(options.layout.text);
    const int product = options.layout->ranks();
    if (by_number && product != options.ranks) {
      refuse(fmt::format("--layout {} needs {} ranks, but -n says {}; try -n {} or --layout {}", options.layout.text, product,
                         options.ranks, product, Layout::tsp(options.ranks).print()));
    }
    if (product > most) {
      refuse(fmt::format("--layout {} needs {} ranks; at most {} {}", options.layout.text, product, most,
                         use == RankUse::on_paper ? "are counted" : "fit on one node"));
    }
    options.ranks = product;
  } else {
    if (!by_number) options.ranks = 1;
    options.layout = Layout::tsp(options.ranks);
  }
}

/// Parses on which nodes the ranks are, and which tsprun starts them.
void validate_nodes(GlobalOptions& options, RankUse use) {
  const bool several = !options.nnodes.empty();
  if (options.nodes.given()) {
    if (several)
      refuse(fmt::format("--nodes {}: it pretends that there are nodes, --nnodes names real ones; give one", options.nodes.text));
    const bool counted = options.ranks.given() || options.layout.given();
    const std::int64_t most = use == RankUse::jobs                   ? shm::kMaxLocalRanks
                              : use == RankUse::on_paper && !counted ? kMostRanksOnPaper
                                                                     : options.ranks.value;
    options.nodes = static_cast<int>(parse_integer("--nodes", options.nodes.text, 1, most));
  }
  if (!several) {
    if (options.node_rank.given()) refuse(fmt::format("--node-rank {}: it goes with --nnodes K", options.node_rank.text));
    if (!options.rendezvous.empty()) refuse(fmt::format("--rendezvous {}: it goes with --nnodes K", options.rendezvous));
    return;
  }
  const bool counted = options.ranks.given() || options.layout.given();
  const std::int64_t most = counted ? options.ranks.value : shm::kMaxLocalRanks;
  options.nodes = static_cast<int>(parse_integer("--nnodes", options.nnodes, 1, most));
  if (!counted && options.nodes > 1) {
    refuse(fmt::format("--nnodes {}: with how many ranks in all? -n isn't given; try -n {}, one on each node", options.nnodes,
                       options.nodes));
  }
  if (!options.node_rank.given()) {
    refuse(fmt::format("--nnodes {}: which one is this? try --node-rank 0", options.nnodes));
  }
  options.node_rank = static_cast<int>(parse_integer("--node-rank", options.node_rank.text, 0, options.nodes - 1));
  if (options.rendezvous.empty()) {
    refuse(fmt::format("--nnodes {}: where do they meet? try --rendezvous HOST:29500, an address of node 0", options.nnodes));
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
    refuse(fmt::format("{}: needs {} processes, `ulimit -u` allows {}; try -n {}, or raise the limit", ranks_as_typed(options),
                       processes + 1, process_limit, std::max<std::uint64_t>(1, nearest)));
  }
  const std::uint64_t needed = descriptors(options, options.ranks);
  const std::uint64_t descriptor_limit = hard_limit_open_files();
  if (needed > descriptor_limit) {
    int nearest = options.ranks;
    while (nearest > options.nodes && descriptors(options, nearest) > descriptor_limit) --nearest;
    refuse(fmt::format("{}: needs {} open files, `ulimit -Hn` allows {}; try -n {}, or raise the limit", ranks_as_typed(options),
                       needed, descriptor_limit, nearest));
  }
  const std::uint64_t available = machine::available_memory();
  if (options.mem_per_rank != 0 && available != 0 && options.mem_per_rank > available / ranks) {
    const std::uint64_t nearest = std::max(kSmallestBudget, (available / ranks) >> 20 << 20);
    refuse(fmt::format("--mem-per-rank {}: {} ranks could take {} MiB together, {} MiB are available; try --mem-per-rank {}",
                       options.mem_per_rank.text, ranks, (options.mem_per_rank * ranks) >> 20, available >> 20,
                       format_size(nearest)));
  }
}

void validate_faults(GlobalOptions& options, RankUse use) {
  options.faults.values.clear();
  for (const std::string& text : options.faults.texts)
    options.faults.values.push_back(fault::parse(text, use == RankUse::jobs ? 0 : options.ranks));
  check_faults(options.faults.values);
}

std::uint64_t parse_budget(const std::string& option, const std::string& text) {
  const std::uint64_t bytes = parse_size(option, text);
  if (bytes < kSmallestBudget || bytes > kLargestBudget) {
    refuse(fmt::format("{} {}: {} to {} work; try {}", option, text, format_size(kSmallestBudget), format_size(kLargestBudget),
                       format_size(std::clamp(bytes, kSmallestBudget, kLargestBudget))));
  }
  return bytes;
}

/// Returns the kinds of transports that ranks at this distance can be told to use.
Choice<bootstrap::Demand> transports_for(Factory::Distance distance, std::string why) {
  Choice<bootstrap::Demand> choice{{{"auto", bootstrap::Demand::automatic}}, std::move(why)};
  for (const Factory* kind : kFactories) {
    if (kind->use(distance) != Factory::Use::never) choice.choices.emplace_back(kind->name, demand_for(kind->name));
  }
  return choice;
}

/// Parses seconds into nanoseconds.
struct Seconds {
  std::uint64_t operator()(const std::string& option, const std::string& text) const {
    const std::optional<double> seconds = number_from<double>(text);
    if (!seconds || !std::isfinite(*seconds))
      refuse(fmt::format("{} {}: not a number of seconds; try {} 30", option, text, option));
    if (*seconds < 0.1 || *seconds > kLongestTimeout) {
      refuse(fmt::format("{} {}: 0.1 to {:.0f} seconds work; try {} {}", option, text, kLongestTimeout, option,
                         *seconds < 0.1 ? "0.1" : fmt::format("{:.0f}", kLongestTimeout)));
    }
    return static_cast<std::uint64_t>(*seconds * 1e9);
  }
  std::string print(std::uint64_t ns) const { return fmt::format("{}", static_cast<double>(ns) / 1e9); }
};

/// Returns true if some ranks talk over sockets or RDMA verbs, if there are several.
bool leaves_memory(const GlobalOptions& options) { return options.nodes > 1 || !within_node(options.intra).to_tell.empty(); }

}  // namespace

void GlobalOptions::declare(OptionTable& table) {
  using enum Trait;
  table.group("Global options (before or after the command)");
  table.add("-n,--ranks N", ranks, "ranks in all; default: the product of --layout, else 1", computed | per_node);
  std::vector<std::string_view> axes;
  for (const AxisRow& row : kAxes) axes.push_back(row.name);
  table.add("--layout SPEC", layout,
            fmt::format("axis=degree,…, outermost first; axes {}; -n N alone means tsp=N", fmt::join(axes, ", ")), per_node);
  for (const AxisRow& row : kAxes) {
    if (row.variants.empty()) continue;
    Choice<std::size_t> choice{.choices = {}, .why = std::string(row.why_no_variant)};
    for (const Variant& each : row.variants) choice.choices.emplace_back(each.name, choice.choices.size());
    table.add(fmt::format("--{} WAY", row.name), variant(row.kind), std::string(row.variants_help), choice);
  }
  table.add("--intra KIND", intra, "transport within a node: {}",
            transports_for(Factory::Distance::node, "there is no such transport within a node; "));
  table.add("--inter KIND", inter, "transport across nodes: {}; auto: verbs where both ends have an active RDMA device, else tcp",
            transports_for(Factory::Distance::job, "there is no such transport across nodes; "));
  table.add("--tls WHEN", tls,
            "encrypt and authenticate what travels by tcp (TLS 1.3, the secret as its key): {}; auto: between machines "
            "(--nnodes), not within one. RDMA isn't encrypted",
            Choice<Encryption>{{{"auto", Encryption::automatic}, {"on", Encryption::on}, {"off", Encryption::off}}}, of_ranks);
  table.add(
      "--rdma DEVICES", rdma,
      "RDMA ports of this tsprun's ranks, DEVICE[:PORT[:GID]] for each, or ^DEVICE for all but these, separated by commas; also "
      "settings such as timeout=20,tc=106; default: local rank i takes the i-th port modulo their number",
      per_node);
  table.add("--nodes K", nodes, "pretend that the ranks sit on K nodes of this machine, which share no memory",
            computed | per_node);
  table.add("--nnodes K", nnodes, "real nodes, a tsprun on each", per_node | of_ranks);
  table.add("--node-rank I", node_rank, "which of them this is, from 0", computed | per_node | of_ranks);
  table.add("--rendezvous HOST:PORT", rendezvous, "where they meet: an address of node 0 and a free port", per_node | of_ranks);
  table.add("--secret-file FILE", secret_file,
            "what all nodes must know, 16 bytes at least; default: $TSP_SECRET, else ~/.config/tsprun/secret, made on first use",
            per_node | reads | of_ranks);
  table.add("--mem-per-rank SIZE", mem_per_rank, "hard budget of a rank's heap, such as 512M; default: none", parse_budget,
            computed | per_node);
  table.add("--timeout SECONDS", timeout_ns, "deadline of waits, in seconds", Seconds{}, of_ranks);
  table.add("--bind HOW", bind, "pin ranks: {}; default: core where each rank has a core of its own",
            Choice<Bind>{{{"core", Bind::core}, {"none", Bind::none}}}, per_node | of_ranks);
  table.add("--threads T", threads,
            "compute threads a rank; they never change a bit of the result; default: this node's cores over its ranks",
            Whole{1, kMostThreads}, computed | per_node);
  table.add("--gemm LIBRARY", gemm,
            "what multiplies f32 and f64 matrices: {}; auto: tsprun's own kernels on x86-64, elsewhere OpenBLAS if it is there "
            "(bf16 is always tsprun's)",
            Choice<kernels::GemmLibrary>{{{"auto", kernels::kUsualGemmLibrary},
                                          {"tsprun", kernels::GemmLibrary::tsprun},
                                          {"openblas", kernels::GemmLibrary::openblas}}});
  table.add("--fault SPEC", faults.texts, "inject a fault, such as kill:rank=3,step=12 or delay:from=0,to=1,ms=20; repeatable",
            of_ranks);
  table.add("--reassociate", reassociate,
            "allow reductions in any order: faster across many nodes and adapters, no longer bit-identical");
  table.add("--verify", verify, "checksum every payload (over tcp they always are)", of_ranks);
  table.add("--link-gbps G", link_gbps, "make links look as slow as G, in 10⁹ bytes per second; default: as fast as they are",
            Number{{.lowest = 0, .highest = 1e6, .usual = 0.5, .open = true}}, computed | of_ranks);
  table.add("--json FILE", json, "write the report for machines to FILE; -: to stdout, and everything else to stderr",
            per_node | writes);
  table.add("--trace FILE", trace, "write a trace of all ranks for Perfetto to FILE (-: stdout), gzipped if it ends in .gz",
            all_or_none | writes);
  trace_options.declare(table);
  table.add("--log-level LEVEL", log_level, "{}", one_of({"trace", "debug", "info", "warn", "error", "critical", "off"}),
            per_node);
  table.add("-q,--quiet", quiet, "only results, errors and verdicts", per_node);
  table.add("--no-prefix", no_prefix, "don't put [rank] before the lines of ranks", per_node | of_ranks);
}

void validate_global(GlobalOptions& options, RankUse use, int processes_per_rank) {
  OptionTable(options).parse();
  validate_ranks(options, use);
  validate_nodes(options, use);
  if (!options.rdma.empty()) {
    const auto choice = verbs::DeviceChoice::parse(options.rdma);
    if (options.rdma.size() >= sizeof bootstrap::JobDescription::rdma) {
      refuse(fmt::format("--rdma {}: {} bytes, of which there may be {}", options.rdma, options.rdma.size(),
                         sizeof bootstrap::JobDescription::rdma - 1));
    }
    if (options.inter != bootstrap::Demand::automatic && options.inter != demand_for("verbs"))
      refuse(fmt::format("--rdma {}: --inter {} uses no RDMA device; leave one of them out", options.rdma, options.inter.text));
    // Where ranks use it, its absence is found before they start, and told to other nodes. On one node no rank would look.
    if (choice.names_ports() && options.nodes == 1 && (use == RankUse::job || use == RankUse::jobs))
      verbs::choose_port(verbs::list_ports(), choice, 0);
  }
  validate_faults(options, use);
  validate_trace_options(options.trace_options, options.trace);
  if (!options.threads.given()) options.threads = std::max(1, machine::usable_cores() / ranks_here(options).count);
  if (use == RankUse::job) validate_against_machine(options, processes_per_rank);
}

std::vector<std::string> ignored_options(const GlobalOptions& options, RankUse use) {
  std::vector<std::string> ignored;
  if (!options.secret_file.empty() && !options.several_machines) {
    ignored.push_back(fmt::format("--secret-file {}: no effect: only tspruns that meet (--nnodes) prove a secret to each other",
                                  options.secret_file));
  }
  // Of several jobs each has ranks of its own number; here there is none yet.
  const bool may_need_store = needs_store(options) || (use == RankUse::jobs && leaves_memory(options));
  if (options.tls == Encryption::on && !may_need_store)
    ignored.push_back("--tls on: no effect: all ranks talk over shared memory; see --nnodes and --intra tcp");
  if (options.nodes > 1) return ignored;
  const auto across_nodes = [&](const char* option, const std::string& value) {
    ignored.push_back(fmt::format("{} {}: no effect: all ranks share one node; see --nnodes and --nodes", option, value));
  };
  if (options.inter != bootstrap::Demand::automatic) across_nodes("--inter", options.inter.text);
  if (!options.rdma.empty()) across_nodes("--rdma", options.rdma);
  return ignored;
}

std::string ranks_as_typed(const GlobalOptions& options) {
  if (!options.ranks.given() && options.layout.given()) return fmt::format("--layout {}", options.layout.text);
  return fmt::format("-n {}", options.ranks);
}

RankBlock ranks_here(const GlobalOptions& options) {
  return options.several_machines ? block_of(options.ranks, options.nodes, options.node_rank) : RankBlock{0, options.ranks};
}

bool needs_store(const GlobalOptions& options) { return options.ranks > 1 && leaves_memory(options); }

bool uses_tls(const GlobalOptions& options) {
  return options.tls == Encryption::on || (options.tls == Encryption::automatic && options.several_machines);
}

}  // namespace tsprun::detail::launcher
