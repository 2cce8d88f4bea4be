// Reads the variables of tsprun, torchrun, Open MPI and Slurm, and refuses starters that don't say enough.
#include "transport/bootstrap/identity.h"

#include "transport/cause.h"
#include "transport/number.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <system_error>

namespace tsprun::detail::bootstrap {

namespace {

/// Names of the variables in which a starter passes a rank's place.
struct Names {
  const char* starter;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

/// Reads the variables of one starter. Errors name the variable, the starter, and what would be valid.
class Reader {
 public:
  Reader(const Getenv& get, const char* starter) : get_(get), starter_(starter) {}

  /// Returns a variable's value; null if it is unset or empty.
  const char* find(const char* variable) const {
    const char* value = get_(variable);
    return value != nullptr && *value != '\0' ? value : nullptr;
  }

  std::string require(const char* variable, std::string_view valid) const {
    const char* value = find(variable);
    if (value == nullptr) {
      throw Error(Cause::refused, fmt::format("this process looks like a rank of {}, but {} isn't set: it must be {}", starter_,
                                              variable, valid));
    }
    return value;
  }

  int number(const char* variable, int least, int most) const {
    const std::string valid = most == std::numeric_limits<int>::max() ? fmt::format("a whole number from {} on", least)
                                                                      : fmt::format("a whole number from {} to {}", least, most);
    return parse(variable, require(variable, valid), least, most, valid);
  }

  int parse(const char* variable, const std::string& text, int least, int most, std::string_view valid) const {
    const std::optional<int> value = number_from<int>(text);
    if (!value || *value < least || *value > most) refuse(variable, text, valid);
    return *value;
  }

  [[noreturn]] void refuse(const char* variable, std::string_view value, std::string_view valid) const {
    throw Error(Cause::refused, fmt::format("{}={} (set by {}): it must be {}", variable, value, starter_, valid));
  }

 private:
  const Getenv& get_;
  const char* starter_;
};

constexpr int kAnyNumber = std::numeric_limits<int>::max();

/// Checks that the four numbers fit together: local ranks number the ranks of a node in the order of their ranks.
void check_place(const Reader& reader, const Names& names, const Identity& place) {
  if (place.local_rank > place.rank) {
    reader.refuse(names.local_rank, std::to_string(place.local_rank),
                  fmt::format("at most {}, which is {}", names.rank, place.rank));
  }
  const int ranks_elsewhere = place.size - place.local_size;
  if (place.rank - place.local_rank > ranks_elsewhere) {
    reader.refuse(names.local_rank, std::to_string(place.local_rank),
                  fmt::format("{} at least: {}={} and only {} of {} ranks are on other nodes", place.rank - ranks_elsewhere,
                              names.rank, place.rank, ranks_elsewhere, place.size));
  }
}

Identity read_place(const Reader& reader, const Names& names) {
  Identity place;
  place.starter = names.starter;
  place.size = reader.number(names.size, 1, kAnyNumber);
  place.rank = reader.number(names.rank, 0, place.size - 1);
  place.local_size = reader.number(names.local_size, 1, place.size);
  place.local_rank = reader.number(names.local_rank, 0, place.local_size - 1);
  check_place(reader, names, place);
  return place;
}

constexpr Names kTsprun = {"tsprun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"};

std::optional<Identity> from_tsprun(const Getenv& get) {
  const Reader reader(get, kTsprun.starter);
  if (!reader.find("TSP_NODE_FD")) return std::nullopt;
  Identity place = read_place(reader, kTsprun);
  place.node_descriptor = reader.number("TSP_NODE_FD", 0, kAnyNumber);
  return place;
}

std::optional<Identity> from_torchrun(const Getenv& get) {
  const Reader reader(get, kTorchrun.starter);
  if (!reader.find("RANK") && !reader.find("WORLD_SIZE")) return std::nullopt;
  Identity place = read_place(reader, kTorchrun);
  // With torchrun's static rendezvous every run has the id "none"; the port tells such runs apart.
  const char* run = reader.find("TORCHELASTIC_RUN_ID");
  place.job_id =
      run != nullptr && std::string_view(run) != "none"
          ? std::string(run)
          : reader.require("MASTER_PORT", "the job's port (or set TORCHELASTIC_RUN_ID), to tell jobs of one machine apart");
  return place;
}

std::optional<Identity> from_open_mpi(const Getenv& get) {
  const Reader reader(get, kOpenMpi.starter);
  if (!reader.find("OMPI_COMM_WORLD_RANK") && !reader.find("OMPI_COMM_WORLD_SIZE")) return std::nullopt;
  Identity place = read_place(reader, kOpenMpi);
  place.job_id = reader.require("PMIX_NAMESPACE", "the job's namespace, to tell jobs of one machine apart");
  place.pmix = place.local_size != place.size;
  return place;
}

/// Returns the node's entry in Slurm's run-length list of tasks per node: "4", "2(x3),1". 0 if the list is malformed or too
/// short.
int tasks_on_node(std::string_view list, int node) {
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at != end) {
    int tasks = 0;
    int times = 1;
    auto parsed = std::from_chars(at, end, tasks);
    if (parsed.ec != std::errc{} || tasks < 1) return 0;
    at = parsed.ptr;
    if (end - at >= 2 && at[0] == '(' && at[1] == 'x') {
      parsed = std::from_chars(at + 2, end, times);
      if (parsed.ec != std::errc{} || times < 1 || parsed.ptr == end || *parsed.ptr != ')') return 0;
      at = parsed.ptr + 1;
    }
    if (node < times) return tasks;
    node -= times;
    if (at == end || *at != ',') return 0;
    ++at;
  }
  return 0;
}

std::optional<Identity> from_slurm(const Getenv& get) {
  const Reader reader(get, "Slurm");
  // A batch script has SLURM_PROCID, too, but only tasks of srun have a step.
  const char* step = reader.find("SLURM_STEP_ID");
  if (step == nullptr) step = reader.find("SLURM_STEPID");
  if (step == nullptr || !reader.find("SLURM_PROCID")) return std::nullopt;

  const char* size_name = reader.find("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  const char* tasks_name = reader.find("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  const char* nodes_name = reader.find("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";

  Identity place;
  place.starter = "Slurm";
  place.size = reader.number(size_name, 1, kAnyNumber);
  place.rank = reader.number("SLURM_PROCID", 0, place.size - 1);
  if (const char* tasks = reader.find(tasks_name)) {
    const int node = reader.find("SLURM_NODEID") ? reader.number("SLURM_NODEID", 0, kAnyNumber) : 0;
    place.local_size = tasks_on_node(tasks, node);
    if (place.local_size < 1 || place.local_size > place.size) {
      reader.refuse(tasks_name, tasks, fmt::format("a list like 2(x3),1 with 1 to {} tasks for node {}", place.size, node));
    }
  } else {
    if (reader.find(nodes_name) && reader.number(nodes_name, 1, kAnyNumber) > 1) {
      reader.require(tasks_name, "the list of tasks per node, as there are several nodes");
    }
    place.local_size = place.size;
  }
  place.local_rank = reader.number("SLURM_LOCALID", 0, place.local_size - 1);
  check_place(reader, Names{"Slurm", "SLURM_PROCID", size_name, "SLURM_LOCALID", tasks_name}, place);
  place.job_id = fmt::format("{}.{}", reader.require("SLURM_JOB_ID", "the job's number"), step);
  // With --mpi=pmi2 or --mpi=pmix ranks of several nodes can meet.
  if (place.local_size != place.size) {
    if (reader.find("PMI_FD")) place.pmi_descriptor = reader.number("PMI_FD", 0, kAnyNumber);
    else place.pmix = reader.find("PMIX_RANK") != nullptr;
  }
  return place;
}

/// Refuses a process that has a rank from PMIx alone, which doesn't say how many ranks there are.
void refuse_bare_pmix(const Getenv& get) {
  const Reader reader(get, "PMIx");
  if (!reader.find("PMIX_RANK")) return;
  throw Error(
      Cause::refused,
      fmt::format(
          "PMIX_RANK={} (set by PMIx): it must come with OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK and _LOCAL_SIZE, or with "
          "srun's SLURM_PROCID and SLURM_STEP_ID, which say how many ranks there are; unset it to run alone",
          reader.find("PMIX_RANK")));
}

/// Reads a rank of a process manager that speaks PMI-1. A single rank needs none.
std::optional<Identity> from_pmi(const Getenv& get) {
  const Reader reader(get, "PMI");
  if (!reader.find("PMI_RANK") || !reader.find("PMI_SIZE")) return std::nullopt;
  Identity place;
  place.starter = "PMI";
  place.size = place.local_size = reader.number("PMI_SIZE", 1, kAnyNumber);
  place.rank = place.local_rank = reader.number("PMI_RANK", 0, place.size - 1);
  if (place.size == 1) return std::nullopt;
  place.pmi_descriptor = reader.number("PMI_FD", 0, kAnyNumber);
  return place;
}

}  // namespace

std::optional<Identity> identity_from_environment(const Getenv& get) {
  // The innermost starter counts: torchrun runs inside srun or mpirun, mpirun inside a Slurm allocation, never the reverse.
  if (auto identity = from_tsprun(get)) return identity;
  if (auto identity = from_torchrun(get)) return identity;
  if (auto identity = from_open_mpi(get)) return identity;
  if (auto identity = from_slurm(get)) return identity;
  refuse_bare_pmix(get);
  return from_pmi(get);
}

std::optional<Identity> identity_from_environment() {
  return identity_from_environment([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace tsprun::detail::bootstrap
