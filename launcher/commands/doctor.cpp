// `tsprun doctor`: reports what this machine can do, and why each transport can or can't be used.
#include "core/collectives/choice.h"
#include "core/kernels/gemm_library.h"
#include "core/kernels/level.h"
#include "launcher/columns.h"
#include "launcher/commands/command.h"
#include "launcher/gemm_trial.h"
#include "launcher/standard_output.h"
#include "launcher/table.h"
#include "launcher/transport_trial.h"
#include "transport/bootstrap/pmix_store.h"
#include "transport/cause.h"
#include "transport/machine.h"
#include "transport/shm/node_memory.h"
#include "transport/verbs/device.h"
#include "transport/verbs/library.h"
#include "transport/verbs/memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

using nlohmann::ordered_json;

std::string text_in_mebibytes(std::uint64_t bytes) { return fmt::format("{} MiB", bytes >> 20); }
std::string limit_text(std::uint64_t limit) { return limit == UINT64_MAX ? "unlimited" : std::to_string(limit); }
ordered_json limit_json(std::uint64_t limit) { return limit == UINT64_MAX ? ordered_json(nullptr) : ordered_json(limit); }

/// Prints a line. What is too long for the terminal goes on below, under column `under`, or on a narrow one not as far right.
void print_fitted(const std::string& line, std::size_t under) {
  constexpr std::size_t kNarrow = 60;
  constexpr std::size_t kLittle = 4;
  const std::size_t columns = table_columns();
  print_lines(wrapped(line, columns, std::string(columns < kNarrow ? kLittle : under, ' ')));
}

/// Returns the table of choices, a line for each row.
std::vector<std::string> choice_lines(const ChoiceTable& choices) {
  Table table({{"operation", Align::left}, "bytes up to", "ranks up to", "views", {"algorithm", Align::left}});
  const auto bound = [](auto most) {
    return most == std::numeric_limits<decltype(most)>::max() ? std::string("any") : std::to_string(most);
  };
  for (const ChoiceRow& row : choices.rows()) {
    const std::string_view views = row.needs_views ? "yes" : row.if_tree_is_faster ? "no" : "any";
    table.row({name(row.op), bound(row.max_bytes), bound(row.max_ranks), views, name(row.algorithm)});
  }
  return table.lines(table_columns());
}

/// Findings about RDMA on this machine.
struct RdmaFindings {
  std::vector<std::string> lines;
  ordered_json json;
};

/// A port with the GID that would be used, or why it can't be.
struct JudgedPort {
  verbs::Port port;
  std::optional<verbs::Gid> chosen{};
  std::string why_not{};
};

JudgedPort judged(const verbs::Port& port, const verbs::DeviceChoice& choice) {
  JudgedPort found{.port = port, .why_not = verbs::unfitness(port, choice)};
  if (!found.why_not.empty()) return found;
  verbs::DeviceChoice alone = choice;
  const bool named = std::ranges::any_of(choice.named, [&](const auto& name) { return name.is_of(port.device, port.number); });
  if (choice.names_ports() && !named) {
    found.why_not = "--rdma names others";
    return found;
  }
  std::erase_if(alone.named, [&](const auto& name) { return !name.is_of(port.device, port.number); });
  try {
    found.chosen = verbs::choose_port({{port}, {}}, alone, 0).gid;
  } catch (const Error& error) {
    found.why_not = error.what();
  }
  return found;
}

ordered_json port_json(const JudgedPort& each) {
  const auto& [port, chosen, why_not] = each;
  ordered_json gids = ordered_json::array();
  for (const verbs::Gid& gid : port.gids) {
    gids.push_back({{"index", gid.index},
                    {"gid", gid.text()},
                    {"type", std::string(verbs::name(gid.type))},
                    {"link_local", gid.is_link_local()},
                    {"foreign", gid.foreign},
                    {"chosen", chosen && chosen->index == gid.index}});
  }
  return {{"device", port.device},
          {"port", port.number},
          {"state", port.state},
          {"active", port.active},
          {"ethernet", port.ethernet},
          {"mtu_bytes", port.mtu_bytes},
          {"max_message_bytes", port.max_bytes},
          {"rate_gbps", port.gbps > 0 ? ordered_json(port.gbps) : ordered_json(nullptr)},
          {"lid", port.lid},
          {"pkeys", port.pkeys},
          {"firmware", port.firmware},
          {"numa_node", port.numa_node >= 0 ? ordered_json(port.numa_node) : ordered_json(nullptr)},
          {"max_queue_pairs", port.max_queue_pairs},
          {"max_completions", port.max_completions},
          {"why_not", why_not.empty() ? ordered_json(nullptr) : ordered_json(why_not)},
          {"gids", std::move(gids)}};
}

void print_port(std::vector<std::string>& lines, const JudgedPort& each) {
  const auto& [port, chosen, why_not] = each;
  lines.push_back(fmt::format(
      "  {:<10} {}, {}{}, MTU {}{}{}{}", port.text(), port.state, port.ethernet ? "Ethernet" : "InfiniBand",
      port.gbps > 0 ? fmt::format(" of {:g} Gb/s", port.gbps) : "", port.mtu_bytes,
      port.ethernet ? "" : fmt::format(", LID {}", port.lid), port.firmware.empty() ? "" : ", firmware " + port.firmware,
      port.numa_node < 0 ? "" : fmt::format(", NUMA node {}", port.numa_node)));
  if (!port.ethernet) lines.push_back(fmt::format("    partitions {:#x}", fmt::join(port.pkeys, ", ")));
  lines.push_back(fmt::format("    at most {} queue pairs, {} completions in a queue, {} bytes in a message",
                              port.max_queue_pairs, port.max_completions, port.max_bytes));
  for (const verbs::Gid& gid : port.gids) {
    lines.push_back(fmt::format("    GID {:<3} {} ({}{}{}){}", gid.index, gid.text(), verbs::name(gid.type),
                                gid.is_link_local() ? ", link-local" : "", gid.foreign ? ", of another network namespace" : "",
                                chosen && chosen->index == gid.index ? "  <- chosen" : ""));
  }
  if (!why_not.empty()) lines.push_back(fmt::format("    isn't used: {}", why_not));
}

/// One row of the table "why this transport".
struct WayRow {
  std::string between;
  std::string kind;  ///< "shm", "verbs", "tcp", "none"
  std::string why;
};

/// Returns the ports that a rank would use if it were alone on this machine.
std::vector<std::string> ports_of_rank_alone(const verbs::Ports& here, const verbs::DeviceChoice& choice) {
  std::vector<std::string> names;
  try {
    for (const verbs::ChosenPort& each : verbs::choose_ports(here, choice, {0, 1})) names.push_back(each.port.text());
  } catch (const Error&) {  // there is none: each port has its reason
  }
  return names;
}

/// Looks at all RDMA devices. `self_test`: the trial of verbs.
RdmaFindings find_rdma(const GlobalOptions& options, const Trial& self_test) {
  RdmaFindings found;
  const verbs::Ports here = verbs::list_ports();
  const std::vector<verbs::Port>& ports = here.ports;
  const verbs::DeviceChoice choice = verbs::DeviceChoice::parse(options.rdma);
  ordered_json list = ordered_json::array();
  for (const verbs::Port& port : ports) {
    const JudgedPort each = judged(port, choice);
    print_port(found.lines, each);
    list.push_back(port_json(each));
  }
  ordered_json left_out = ordered_json::array();
  for (const verbs::BadDevice& bad : here.bad) {
    found.lines.push_back(fmt::format("  {:<10} left out: {}", bad.device, bad.why));
    left_out.push_back({{"device", bad.device}, {"why", bad.why}});
  }
  if (ports.empty() && here.bad.empty()) found.lines.push_back("  " + self_test.why);
  const std::vector<std::string> alone = ports_of_rank_alone(here, choice);
  if (alone.size() > 1) {
    found.lines.push_back(fmt::format("  a rank alone here uses {}; of R ranks the i-th uses every R-th of them from the i-th on",
                                      fmt::join(alone, ", ")));
  }
  const std::string shortage = ports.empty() ? std::string() : verbs::locked_memory_shortage(1);
  if (!shortage.empty()) found.lines.push_back("  " + shortage);
  found.json = {{"ports", std::move(list)},
                {"left_out", std::move(left_out)},
                {"rank_alone", alone},
                {"self_test", {{"possible", self_test.possible}, {"why", self_test.why}}},
                {"locked_memory", shortage.empty() ? ordered_json(nullptr) : ordered_json(shortage)}};
  return found;
}

/// Tries OpenBLAS. `why`: its version and core type, or what went wrong.
Trial try_openblas(const GlobalOptions& global) {
  kernels::set_gemm_library(kernels::GemmLibrary::openblas);
  Trial trial;
  try {
    trial.why = try_gemm_library(global.kernel_level);
  } catch (const Error& error) {
    trial = {false, error.what()};
  }
  kernels::set_gemm_library(global.gemm);
  return trial;
}

/// A library that is loaded when it is needed.
struct OptionalLibrary {
  const char* name;
  const char* purpose;
  std::string trouble;  ///< why it can't be loaded; empty: it can
};

/// `openblas`: its trial.
std::vector<OptionalLibrary> find_libraries(const Trial& openblas) {
  return {{"libibverbs", "RDMA", verbs::library_trouble()},
          {"libpmix", "ranks that mpirun or srun --mpi=pmix start on several nodes", bootstrap::pmix_trouble()},
          {"libopenblas", "--gemm openblas", openblas.possible ? std::string() : openblas.why}};
}

/// Trials of all kinds of transports, in the order of the table.
using Trials = std::array<Trial, kFactories.size()>;

/// Returns which transport ranks at a distance would use if this is demanded, judged by the trials on this machine.
WayRow likely_way(std::string_view between, Factory::Distance distance, bootstrap::Demand demanded, const Trials& trials) {
  using enum Factory::Claim::Answer;
  WayRow row{std::string(between), "none", ""};
  for (std::size_t i = 0; i < kFactories.size(); ++i) {
    const Factory& kind = *kFactories[i];
    const Factory::Claim claim = kind.claim(demanded, distance);
    if (claim.answer == no) {
      if (!claim.why.empty()) row.why = claim.why;
    } else if (trials[i].possible) {
      row.kind = kind.name;
      if (claim.answer != yes)
        row.why = fmt::format("with nodes whose self-test is as good; tcp with others, unless --inter {}", kind.name);
      else if (row.why.empty()) row.why = kind.views ? "they share this node's memory" : "nothing stands in the way";
      return row;
    } else {
      row.why = claim.why.empty() ? trials[i].why : fmt::format("{}: {}", claim.why, trials[i].why);
      if (claim.answer != if_reachable) return row;
    }
  }
  return row;
}

class Doctor : public Command {
 public:
  CommandFacts facts() const override {
    return {.name = "doctor",
            .help = "what this machine can do: cores and quota, memory, limits, RDMA devices, transports and why, algorithms",
            .examples = {"tsprun doctor", "tsprun --json doctor.json doctor"},
            .ranks = RankUse::none};
  }

  int run(const GlobalOptions& global, Report& report) override {
    const std::string& overrides = global.algorithms;
    const ChoiceTable choices(overrides);
    if (const auto choice = verbs::DeviceChoice::parse(global.rdma); choice.names_ports()) {
      verbs::choose_port(verbs::list_ports(), choice, 0);  // refuses what there isn't
    }
    Trials trials;
    std::ranges::transform(kFactories, trials.begin(), [&](const Factory* kind) {
      return try_transport(*kind, kind->device_option.empty() ? std::string() : global.rdma);
    });
    const auto trial_of = [&](std::string_view kind) -> const Trial& {
      return trials[static_cast<std::size_t>(demand_for(kind)) - 1];
    };
    const RdmaFindings rdma = find_rdma(global, trial_of("verbs"));
    const std::vector<WayRow> ways = {likely_way("same node", Factory::Distance::node, global.intra, trials),
                                      likely_way("other nodes", Factory::Distance::job, global.inter, trials)};
    const machine::Space space = machine::shared_memory_file_system();
    const double quota = machine::cpu_quota();
    const std::string policy = machine::huge_page_policy_for_shared_memory();
    const int cores = machine::usable_cores();
    const std::string level(kernels::name(kernels::best_level()));
    const std::string gemm(kernels::name(global.gemm));
    const Trial openblas = try_openblas(global);
    const std::vector<OptionalLibrary> libraries = find_libraries(openblas);

    const auto row = [](std::string_view key, const std::string& value) {
      print_fitted(fmt::format("{:<22}{}", key, value), 22);
    };
    row("cores", fmt::format("{} usable: {} by affinity, quota {}", cores, machine::allowed_cores(),
                             quota > 0 ? fmt::format("{:.2f}", quota) : "none"));
    row("vector level", level);
    row("matrix products", fmt::format("{} (--gemm); {}{}", gemm, openblas.possible ? "" : "no openblas: ", openblas.why));
    row("memory", fmt::format("{} available of {}", text_in_mebibytes(machine::available_memory()),
                              text_in_mebibytes(machine::total_memory())));
    row("/dev/shm", fmt::format("{} free of {} (ranks started by tsprun don't use it)", text_in_mebibytes(space.free),
                                text_in_mebibytes(space.total)));
    row("heap reservation", fmt::format("{} of address space a rank; only what is touched costs memory",
                                        text_in_mebibytes(shm::default_heap_bytes())));
    row("open files", limit_text(machine::limit_open_files()));
    row("processes", limit_text(machine::limit_processes()));
    row("locked memory", fmt::format("{} bytes", limit_text(machine::limit_locked_memory())));
    row("address space", fmt::format("{} bytes", limit_text(machine::limit_address_space())));
    row("huge pages for shm",
        policy.empty() ? "unknown to this kernel" : fmt::format("{} (heaps ask for them all the same)", policy));
    row("ranks on this node",
        fmt::format("at most {}; up to {} with a core of their own, more share cores by yielding and sleeping",
                    shm::kMaxLocalRanks, cores));
    print("\nRDMA ports\n");
    for (const std::string& line : rdma.lines) print_fitted(line, line.find_first_not_of(' ') + 2);
    print("\ntransports\n");
    for (std::size_t i = 0; i < trials.size(); ++i)
      print_fitted(fmt::format("  {:<6}{}: {}", kFactories[i]->name, trials[i].possible ? "yes" : "no", trials[i].why), 8);
    print("\nwhy this transport\n");
    for (const WayRow& way : ways) print_fitted(fmt::format("  {:<12} {:<6}{}", way.between, way.kind, way.why), 21);
    print("\nlibraries that are loaded when needed\n");
    for (const auto& [name, purpose, trouble] : libraries)
      print_fitted(fmt::format("  {:<12} {}: {}", name, purpose, trouble.empty() ? "here" : trouble), 15);
    print("\n");
    print_fitted(
        fmt::format("algorithms (first line that fits; TSP_ALGORITHMS overrides{})", overrides.empty() ? "" : ": " + overrides),
        2);
    print_lines(choice_lines(choices));
    print("\nalgorithms that there are\n");
    for (int i = 0; i < kOps; ++i)
      print_fitted(fmt::format("{:<15} {}", name(static_cast<Op>(i)), algorithm_names(static_cast<Op>(i))), 16);

    ordered_json& facts = report.root()["doctor"];
    facts["cores"] = {{"usable", cores},
                      {"affinity", machine::allowed_cores()},
                      {"quota", quota > 0 ? ordered_json(quota) : ordered_json(nullptr)}};
    facts["vector_level"] = level;
    facts["gemm"] = gemm;
    facts["openblas"] = {{"possible", openblas.possible}, {"why", openblas.why}};
    facts["memory"] = {{"available_bytes", machine::available_memory()}, {"total_bytes", machine::total_memory()}};
    facts["dev_shm"] = {{"free_bytes", space.free}, {"total_bytes", space.total}};
    facts["heap_reservation_bytes"] = shm::default_heap_bytes();
    facts["limits"] = {{"open_files", limit_json(machine::limit_open_files())},
                       {"processes", limit_json(machine::limit_processes())},
                       {"locked_memory_bytes", limit_json(machine::limit_locked_memory())},
                       {"address_space_bytes", limit_json(machine::limit_address_space())}};
    facts["huge_page_policy_for_shared_memory"] = policy.empty() ? ordered_json(nullptr) : ordered_json(policy);
    facts["most_local_ranks"] = shm::kMaxLocalRanks;
    facts["rdma"] = rdma.json;
    facts["transports"] = ordered_json::array();
    for (std::size_t i = 0; i < trials.size(); ++i) {
      facts["transports"].push_back({{"kind", kFactories[i]->name}, {"possible", trials[i].possible}, {"why", trials[i].why}});
    }
    facts["ways"] = ordered_json::array();
    for (const WayRow& way : ways) facts["ways"].push_back({{"between", way.between}, {"kind", way.kind}, {"why", way.why}});
    facts["libraries"] = ordered_json::array();
    for (const auto& [name, purpose, trouble] : libraries) {
      facts["libraries"].push_back(
          {{"name", name}, {"purpose", purpose}, {"trouble", trouble.empty() ? ordered_json(nullptr) : ordered_json(trouble)}});
    }
    ordered_json& algorithms = facts["algorithms"] = ordered_json::array();
    for (const ChoiceRow& choice : choices.rows()) {
      algorithms.push_back({{"op", std::string(tsprun::name(choice.op))},
                            {"max_bytes", limit_json(choice.max_bytes)},
                            {"max_ranks", choice.max_ranks == std::numeric_limits<int>::max() ? ordered_json(nullptr)
                                                                                              : ordered_json(choice.max_ranks)},
                            {"needs_views", choice.needs_views},
                            {"algorithm", std::string(tsprun::name(choice.algorithm))}});
    }
    const bool multiplies = openblas.possible || global.gemm != kernels::GemmLibrary::openblas;
    return trial_of("shm").possible && multiplies ? 0 : 1;
  }
};

}  // namespace

std::unique_ptr<Command> make_doctor() { return std::make_unique<Doctor>(); }

}  // namespace tsprun::detail::launcher
