// Reads the variables of Slurm, torchrun, Open MPI and MPICH's Hydra.
#include "launcher/starter.h"

#include "launcher/refuse.h"
#include "transport/number.h"
#include "transport/xxhash.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

namespace tsprun::detail::launcher {

namespace {

constexpr int kMostNodes = 1 << 16;
/// Port of the meeting point if none is given; torchrun's default, too.
constexpr int kUsualPort = 29400;
/// Range of ports that are derived from a job's number: below those that Linux gives to outgoing connections.
constexpr int kFirstPort = 10000;
constexpr int kPorts = 20000;

/// A value, and the names of the variables that it was taken from.
struct NamedValue {
  std::string value;
  std::string from;
};

/// Everything that a starter says.
struct StarterFacts {
  std::string starter;
  NamedValue nodes = {};  ///< empty: one node, and only `ranks` are said
  NamedValue node_rank = {};
  std::optional<NamedValue> rendezvous = std::nullopt;
  std::optional<NamedValue> ranks = std::nullopt;
};

class Variables {
 public:
  Variables(const bootstrap::Getenv& get, std::string starter) : get_(get), starter_(std::move(starter)) {}

  /// Returns a variable's value; null if it is unset or empty.
  const char* find(const char* name) const {
    const char* value = get_(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
  }
  /// Returns the first of two names that is set; null: neither is.
  const char* either(const char* name, const char* other) const {
    return find(name) != nullptr ? name : find(other) != nullptr ? other : nullptr;
  }

  int number(const char* name, int least, int most) const {
    const char* text = find(name);
    if (text == nullptr) refuse(fmt::format("{} isn't set, though {} started this tsprun", name, starter_));
    const std::optional<int> value = number_from<int>(text);
    if (!value || *value < least || *value > most)
      refuse(fmt::format("{}={} (set by {}): {} to {} are expected", name, text, starter_, least, most));
    return *value;
  }

  /// Returns the meeting point: MASTER_ADDR and MASTER_PORT, which users of every starter know, before the starter's own host and
  /// port. Empty if no host is known.
  std::optional<NamedValue> meeting_point(std::optional<NamedValue> host, std::optional<NamedValue> port) const {
    if (const char* address = find("MASTER_ADDR")) host = NamedValue{address, "MASTER_ADDR"};
    if (find("MASTER_PORT") != nullptr) port = NamedValue{std::to_string(number("MASTER_PORT", 1, 65535)), "MASTER_PORT"};
    if (!host) return std::nullopt;
    if (!port) port = NamedValue{std::to_string(kUsualPort), "the usual port"};
    const bool bare_ipv6 = host->value.find(':') != std::string::npos && host->value.front() != '[';
    const std::string name = bare_ipv6 ? fmt::format("[{}]", host->value) : host->value;
    return NamedValue{fmt::format("{}:{}", name, port->value), fmt::format("{}, {}", host->from, port->from)};
  }

 private:
  const bootstrap::Getenv& get_;
  std::string starter_;
};

[[noreturn]] void refuse_several(const std::string& starter, const std::string& variables, const std::string& mend) {
  refuse(
      fmt::format("{}: {} started several tspruns on a machine, and each starts ranks of its own; start one on each: {}; or give "
                  "--nnodes 1 if each shall run a whole job alone",
                  variables, starter, mend));
}

/// Returns a port that is the same on all nodes of a job step, and usually another one for another step.
int port_of(std::string_view job) { return kFirstPort + static_cast<int>(XXH3_64bits(job.data(), job.size()) % kPorts); }

std::optional<StarterFacts> said_by_slurm(const bootstrap::Getenv& get) {
  const Variables slurm(get, "srun");
  const char* step = slurm.either("SLURM_STEP_ID", "SLURM_STEPID");
  if (step == nullptr || slurm.find("SLURM_PROCID") == nullptr) return std::nullopt;
  // Only the step's own variables: those of the job also count nodes that the step may have left out.
  if (slurm.find("SLURM_STEP_NUM_TASKS") == nullptr) return std::nullopt;
  const int tasks = slurm.number("SLURM_STEP_NUM_TASKS", 1, kMostNodes);
  if (tasks == 1) return std::nullopt;
  const int nodes = slurm.number("SLURM_STEP_NUM_NODES", 1, kMostNodes);
  if (tasks != nodes) {
    refuse_several("srun", fmt::format("SLURM_STEP_NUM_TASKS={}, SLURM_STEP_NUM_NODES={}", tasks, nodes),
                   fmt::format("srun -N{} --ntasks-per-node=1 tsprun -n … ", nodes));
  }
  StarterFacts said{.starter = "srun",
                    .nodes = {std::to_string(nodes), "SLURM_STEP_NUM_NODES"},
                    .node_rank = {std::to_string(slurm.number("SLURM_NODEID", 0, nodes - 1)), "SLURM_NODEID"}};
  std::optional<NamedValue> host;
  std::optional<NamedValue> port;
  const char* list = slurm.either("SLURM_STEP_NODELIST", "SLURM_NODELIST");
  if (list != nullptr) {
    const std::string first = first_of_node_list(slurm.find(list));
    if (first.empty()) refuse(fmt::format("{}={} (set by srun): a list like n[01-04] is expected", list, slurm.find(list)));
    host = NamedValue{first, fmt::format("the first of {}", list)};
  }
  if (const char* job = slurm.find("SLURM_JOB_ID")) {
    port =
        NamedValue{std::to_string(port_of(fmt::format("{}.{}", job, slurm.find(step)))), fmt::format("SLURM_JOB_ID, {}", step)};
  }
  said.rendezvous = slurm.meeting_point(host, port);
  return said;
}

std::optional<StarterFacts> said_by_torchrun(const bootstrap::Getenv& get) {
  const Variables pet(get, "PET_*");
  // As torchrun does without PET_NNODES.
  std::string nodes_text = pet.find("PET_NNODES") != nullptr ? pet.find("PET_NNODES") : "1";
  // torchrun's elastic form, "2:2". A range is no fixed number of nodes.
  if (const std::size_t colon = nodes_text.find(':');
      colon != std::string::npos && nodes_text.substr(0, colon) == nodes_text.substr(colon + 1)) {
    nodes_text.resize(colon);
  }
  const int nodes = number_from<int>(nodes_text).value_or(0);
  if (nodes < 1 || nodes > kMostNodes)
    refuse(fmt::format("PET_NNODES={}: a fixed number of nodes is expected", pet.find("PET_NNODES")));
  // "auto", "gpu" and "cpu" say nothing to us.
  std::optional<NamedValue> ranks;
  const char* each = pet.find("PET_NPROC_PER_NODE");
  if (each != nullptr && *each >= '0' && *each <= '9') {
    ranks = NamedValue{std::to_string(nodes * static_cast<std::int64_t>(pet.number("PET_NPROC_PER_NODE", 1, kMostNodes))),
                       nodes == 1 ? "PET_NPROC_PER_NODE" : "PET_NNODES times PET_NPROC_PER_NODE"};
  }
  if (nodes == 1) return ranks ? std::optional(StarterFacts{.starter = "PET_*", .ranks = ranks}) : std::nullopt;
  StarterFacts said{.starter = "PET_*",
                    .nodes = {std::to_string(nodes), "PET_NNODES"},
                    .node_rank = {std::to_string(pet.number("PET_NODE_RANK", 0, nodes - 1)), "PET_NODE_RANK"},
                    .ranks = ranks};
  if (const char* endpoint = pet.find("PET_RDZV_ENDPOINT")) {
    // torchrun's own port, where the endpoint has none.
    const std::size_t end_of_host = std::string_view(endpoint).find_last_of(":]");  // "[::1]" is a host
    const bool has_port = end_of_host != std::string_view::npos && endpoint[end_of_host] == ':';
    said.rendezvous = NamedValue{has_port ? endpoint : fmt::format("{}:29400", endpoint), "PET_RDZV_ENDPOINT"};
  } else {
    std::optional<NamedValue> host;
    std::optional<NamedValue> port;
    if (const char* address = pet.find("PET_MASTER_ADDR")) host = NamedValue{address, "PET_MASTER_ADDR"};
    if (pet.find("PET_MASTER_PORT") != nullptr)
      port = NamedValue{std::to_string(pet.number("PET_MASTER_PORT", 1, 65535)), "PET_MASTER_PORT"};
    said.rendezvous = pet.meeting_point(host, port);
  }
  return said;
}

/// Variables in which an mpirun gives a process its number, the number of processes in all, and of those on its machine.
struct MpiNames {
  const char* starter;
  const char* size;
  const char* rank;
  const char* local_size;
  const char* mend;
};
constexpr MpiNames kOpenMpi = {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                               "mpirun -N 1 tsprun -n …"};
constexpr MpiNames kHydra = {"MPICH's mpirun", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "mpirun -ppn 1 tsprun -n …"};

std::optional<StarterFacts> said_by_mpi(const bootstrap::Getenv& get, const MpiNames& names) {
  const Variables mpi(get, names.starter);
  // srun sets PMI_SIZE and PMI_RANK too, but not the third variable.
  if (mpi.find(names.size) == nullptr || mpi.find(names.local_size) == nullptr) return std::nullopt;
  const int size = mpi.number(names.size, 1, kMostNodes);
  if (size == 1) return std::nullopt;
  if (mpi.number(names.local_size, 1, size) > 1) {
    refuse_several(names.starter, fmt::format("{}={}, {}={}", names.size, size, names.local_size, mpi.find(names.local_size)),
                   names.mend);
  }
  return StarterFacts{.starter = names.starter,
                      .nodes = {std::to_string(size), names.size},
                      .node_rank = {std::to_string(mpi.number(names.rank, 0, size - 1)), names.rank},
                      .rendezvous = mpi.meeting_point(std::nullopt, std::nullopt)};
}

/// Asks the innermost starter first, as for ranks (identity.h).
std::optional<StarterFacts> facts_of_starter(const bootstrap::Getenv& get) {
  const Variables tsprun(get, "tsprun");
  if (tsprun.find("TSP_NODE_FD") != nullptr) return std::nullopt;
  std::optional<StarterFacts> pet = said_by_torchrun(get);
  if (pet && !pet->nodes.value.empty()) return pet;
  if (auto said = said_by_mpi(get, kOpenMpi)) return said;
  // Within Slurm mpirun starts a helper on each node by srun, and that starts the processes.
  if (auto said = said_by_mpi(get, kHydra)) return said;
  if (auto said = said_by_slurm(get)) return said;
  return pet;
}

}  // namespace

std::string take_from_starter(GlobalOptions& options, const bootstrap::Getenv& get) {
  const bool placed = !options.nnodes.empty() && options.node_rank.given() && !options.rendezvous.empty();
  if (options.nodes.given() || options.nnodes == "1" || placed) return {};
  const std::optional<StarterFacts> said = facts_of_starter(get);
  if (!said) return {};
  std::string taken;
  const auto take = [&](std::string& text, const char* option, const NamedValue& found) {
    if (!text.empty()) return;
    text = found.value;
    taken += fmt::format("{}{} {} ({})", taken.empty() ? "" : ", ", option, found.value, found.from);
  };
  if (said->ranks && !options.ranks.given() && !options.layout.given()) take(options.ranks.text, "-n", *said->ranks);
  if (said->nodes.value.empty()) return taken.empty() ? taken : fmt::format("taken from {}: {}", said->starter, taken);
  take(options.nnodes, "--nnodes", said->nodes);
  take(options.node_rank.text, "--node-rank", said->node_rank);
  if (options.rendezvous.empty() && !said->rendezvous) {
    refuse(
        fmt::format("{} started {} tspruns ({}), but says nothing of where they can meet: give --rendezvous HOST:PORT, an "
                    "address of node 0, or set MASTER_ADDR and MASTER_PORT; --nnodes 1 if each shall run a whole job alone",
                    said->starter, said->nodes.value, said->nodes.from));
  }
  if (said->rendezvous) take(options.rendezvous, "--rendezvous", *said->rendezvous);
  return taken.empty() ? taken : fmt::format("taken from {}: {}", said->starter, taken);
}

std::string first_of_node_list(std::string_view list) {
  std::string name;
  for (std::size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] == ']') return {};
    if (list[at] != '[') {
      name += list[at++];
      continue;
    }
    const std::size_t close = list.find(']', at);
    if (close == std::string_view::npos) return {};
    // The first number of "01-03,7", with its zeros.
    const std::string_view inside = list.substr(at + 1, close - at - 1);
    const std::string_view first = inside.substr(0, inside.find_first_of(",-"));
    if (first.empty()) return {};
    name += first;
    at = close + 1;
  }
  return name;
}

}  // namespace tsprun::detail::launcher
