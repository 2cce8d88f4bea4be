// Knows the variables of Kubernetes, PyTorch's operator, LeaderWorkerSet, Volcano, Slurm, PBS, LSF, Grid Engine and Flux.
#include "launcher/lone_start.h"

#include "transport/number.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

/// What a starter's variables say.
struct Seen {
  std::string what;         ///< in words, such as "there are 2 processes"
  std::string nodes = {};   ///< for --nnodes; empty: not known
  std::string number = {};  ///< for --node-rank; empty: not known
  std::string host = {};    ///< for --rendezvous; empty: not known
  std::string start = {};   ///< a command that starts one tsprun on each machine; empty: each is started already
  bool tells_all = false;   ///< tspruns that are started so need no options: they take all from the starter
};

class SeenVariables {
 public:
  explicit SeenVariables(const bootstrap::Getenv& get) : get_(get) {}

  bool has(const char* name) const { return !text(name).empty(); }
  std::string text(const char* name) const {
    const char* value = get_(name);
    return value != nullptr ? value : "";
  }
  /// Returns the first of the names that is set; null: none is.
  const char* first(std::initializer_list<const char*> names) const {
    const auto* const found = std::ranges::find_if(names, [this](const char* name) { return has(name); });
    return found != names.end() ? *found : nullptr;
  }
  /// Returns true if the variable is a number above 1.
  bool several(const char* name) const { return number_from<int>(text(name)).value_or(0) > 1; }
  /// Returns those of the variables that are set, with their values: "RANK=1, WORLD_SIZE=2".
  std::string shown(std::initializer_list<const char*> names) const {
    std::vector<std::string> list;
    for (const char* name : names)
      if (has(name)) list.push_back(fmt::format("{}={}", name, text(name)));
    return fmt::format("{}", fmt::join(list, ", "));
  }

 private:
  const bootstrap::Getenv& get_;
};

std::optional<Seen> seen_of_pytorch(const SeenVariables& seen) {
  if (!seen.several("WORLD_SIZE") || !seen.has("RANK")) return std::nullopt;
  const std::string shown = seen.shown({"WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"});
  if (seen.has("LOCAL_RANK")) return Seen{.what = shown, .start = "tsprun in torchrun's place, once on each machine"};
  const std::string host = seen.has("MASTER_ADDR") && seen.has("MASTER_PORT")
                               ? fmt::format("{}:{}", seen.text("MASTER_ADDR"), seen.text("MASTER_PORT"))
                               : seen.text("MASTER_ADDR");
  return Seen{.what = shown, .nodes = seen.text("WORLD_SIZE"), .number = seen.text("RANK"), .host = host};
}

std::optional<Seen> seen_of_kubernetes(const SeenVariables& seen) {
  if (seen.several("LWS_GROUP_SIZE")) {
    return Seen{.what = seen.shown({"LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"}),
                .nodes = seen.text("LWS_GROUP_SIZE"),
                .number = seen.text("LWS_WORKER_INDEX"),
                .host = seen.text("LWS_LEADER_ADDRESS")};
  }
  if (const char* index = seen.first({"VC_TASK_INDEX", "VK_TASK_INDEX"})) {
    return Seen{.what = seen.shown({"VC_TASK_INDEX", "VK_TASK_INDEX", "VC_WORKER_NUM", "VC_WORKER_HOSTS"}),
                .nodes = seen.text("VC_WORKER_NUM"),
                .number = seen.text(index)};
  }
  if (!seen.has("JOB_COMPLETION_INDEX")) return std::nullopt;
  return Seen{.what = seen.shown({"JOB_COMPLETION_INDEX"}), .number = seen.text("JOB_COMPLETION_INDEX")};
}

/// Slurm's allocation of several nodes, of which a process that srun didn't start has the first alone; with salloc, none.
std::optional<Seen> seen_of_slurm(const SeenVariables& seen) {
  if (seen.first({"SLURM_STEP_ID", "SLURM_STEPID"}) != nullptr) return std::nullopt;
  const char* const nodes = seen.first({"SLURM_JOB_NUM_NODES", "SLURM_NNODES"});
  if (nodes == nullptr || !seen.several(nodes)) return std::nullopt;
  return Seen{.what = seen.shown({"SLURM_JOB_ID", nodes, "SLURM_JOB_NODELIST"}),
              .start = fmt::format("srun -N{} --ntasks-per-node=1 tsprun -n …", seen.text(nodes)),
              .tells_all = true};
}

/// Returns the number of different first words of a file's lines.
std::size_t hosts_in(const std::string& path) {
  std::set<std::string> hosts;
  std::ifstream file(path);
  for (std::string line, host; std::getline(file, line);)
    if (std::istringstream(line) >> host) hosts.insert(host);
  return hosts.size();
}

std::optional<Seen> seen_of_batch_systems(const SeenVariables& seen) {
  const std::string once = "one tsprun on each of them";
  if (seen.several("PBS_NUM_NODES") || (seen.has("PBS_NODEFILE") && hosts_in(seen.text("PBS_NODEFILE")) > 1)) {
    return Seen{.what = seen.shown({"PBS_JOBID", "PBS_NUM_NODES", "PBS_NODENUM", "PBS_NODEFILE"}),
                .number = seen.text("PBS_NODENUM"),
                .start = once + ", such as by pbsdsh -u"};
  }
  std::istringstream list(seen.text("LSB_MCPU_HOSTS"));  // "hosta 4 hostb 4"
  if (std::distance(std::istream_iterator<std::string>(list), {}) > 2)
    return Seen{.what = seen.shown({"LSB_JOBID", "LSB_MCPU_HOSTS"}), .start = once + ", such as by blaunch -z"};
  if (seen.several("NHOSTS"))
    return Seen{.what = seen.shown({"JOB_ID", "NHOSTS", "PE_HOSTFILE"}), .start = once + ", such as by qrsh -inherit"};
  const char* const size = seen.several("FLUX_JOB_SIZE") ? "FLUX_JOB_SIZE" : "FLUX_JOB_NNODES";
  if (seen.several(size)) {
    return Seen{.what = seen.shown({"FLUX_JOB_ID", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES", "FLUX_TASK_RANK"}),
                .nodes = seen.text(size),
                .number = seen.text("FLUX_TASK_RANK")};
  }
  return std::nullopt;
}

std::string or_else(const std::string& value, const char* placeholder) { return value.empty() ? placeholder : value; }

}  // namespace

std::string lone_start(const GlobalOptions& options, const bootstrap::Getenv& get) {
  if (options.nodes.given() || !options.nnodes.empty()) return {};
  const SeenVariables seen(get);
  if (seen.has("TSP_NODE_FD")) return {};  // a rank of another tsprun, whose starter has had its say
  std::optional<Seen> said = seen_of_pytorch(seen);
  if (!said) said = seen_of_kubernetes(seen);
  if (!said) said = seen_of_slurm(seen);
  if (!said) said = seen_of_batch_systems(seen);
  if (!said) return {};
  const std::string host = or_else(said->host, "HOST") + (said->host.rfind(':') == std::string::npos ? ":29400" : "");
  const std::string options_of_each = fmt::format("give each --nnodes {} --node-rank {} --rendezvous {} and -n, the ranks of all",
                                                  or_else(said->nodes, "K"), or_else(said->number, "I"), host);
  const std::string remedy = said->start.empty() ? options_of_each
                             : said->tells_all   ? "start " + said->start
                                                 : fmt::format("start {}, and {}", said->start, options_of_each);
  return fmt::format(
      "{}: this looks like a job of several machines, but this tsprun runs one of its own here, alone. To join them {}; "
      "--nnodes 1 says that it shall be alone",
      said->what, remedy);
}

}  // namespace tsprun::detail::launcher
