// Environment variables of tsprun: the table of all, and the class that reads them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tsprun::detail::bootstrap {
enum class Demand : std::uint32_t;
}

namespace tsprun::detail {

/// Readers of a variable.
enum class ObeyedBy : std::uint8_t {
  programs,  ///< programs that link the library; `tsprun run` hands them on, other commands refuse them
  jobs,      ///< those, and the ranks of tsprun's own commands
  tsprun     ///< tsprun alone
};

/// A row of the table.
struct EnvironmentVariable {
  std::string_view name;
  ObeyedBy by;
  std::string_view values;   ///< what it may be, as users read it
  std::string_view absent;   ///< what holds if it isn't set
  std::string_view meaning;  ///< what it does
  std::string_view option;   ///< tsprun's option for the same; empty: there is none
};

/// Table of all variables. That of docs/reference/environment.md is made of this one, which a test checks.
inline constexpr std::array<EnvironmentVariable, 15> kEnvironment = {{
    {"TSP_KERNELS", ObeyedBy::tsprun, "baseline; on x86-64 avx2, avx512, avx512_bf16, amx_bf16; on aarch64 neon",
     "the best level that every rank's machine offers",
     "holds the ranks of train, eval, generate, block and compare at this level of kernels, so that unlike machines agree bit "
     "for bit",
     ""},
    {"TSP_GEMM", ObeyedBy::jobs, "auto, tsprun, openblas", "auto: tsprun on x86-64, elsewhere openblas if it is there",
     "what multiplies f32 and f64 matrices: tsprun's own kernels, or OpenBLAS, which is loaded then", "--gemm"},
    {"TSP_ALGORITHMS", ObeyedBy::jobs, "all_reduce=ring,all_gather<64K=direct", "the built-in table",
     "overrides of the table that chooses collectives' algorithms; `hierarchical` and `tree` are refused where the job can't "
     "have them",
     ""},
    {"TSP_SECRET", ObeyedBy::tsprun, "at least 16 bytes", "the file ~/.config/tsprun/secret",
     "the job's secret on several nodes; tsprun wipes it from its environment, and hands it on to no program", "--secret-file"},
    {"TSP_LOG_LEVEL", ObeyedBy::programs, "trace, debug, info, warn, error, critical, off", "info",
     "how much the library says on stderr", "--log-level"},
    {"TSP_TIMEOUT", ObeyedBy::programs, "seconds, 0.001 to 1000000", "30",
     "deadline of waits, that of a rank that leaves for the others among them; for programs that no tsprun started", "--timeout"},
    {"TSP_NODE", ObeyedBy::programs, "any text", "the machine itself",
     "name of the node that a rank is on, for programs that no tsprun started: ranks of one machine that have unlike names share "
     "no "
     "memory",
     "--nodes"},
    {"TSP_INTER", ObeyedBy::programs, "auto, verbs, tcp", "auto",
     "transport across nodes, for programs that no tsprun started; rank 0's holds for all", "--inter"},
    {"TSP_RDMA", ObeyedBy::programs, "as --rdma", "choose a device",
     "RDMA device of this node's ranks, and how it is used, for programs that no tsprun started", "--rdma"},
    {"TSP_MEM_PER_RANK", ObeyedBy::programs, "bytes", "no budget", "budget of a rank's heap", "--mem-per-rank"},
    {"TSP_VERIFY", ObeyedBy::programs, "0, 1", "0", "checksums every payload; tcp always does", "--verify"},
    {"TSP_REASSOCIATE", ObeyedBy::programs, "0, 1", "0", "allows orders of summation that depend on which rank is on which node",
     "--reassociate"},
    {"TSP_FAULTS", ObeyedBy::programs, "texts of --fault, separated by ';'", "none", "injected faults", "--fault"},
    {"TSP_BLOCKING", ObeyedBy::programs, "0, 1", "0",
     "waits for every posted operation at once, which shows what a schedule hides", ""},
    {"TSP_LINK_GBPS", ObeyedBy::programs, "10⁹ bytes per second, more than 0 and at most 1000000", "as fast as they are",
     "makes links look as slow as this", "--link-gbps"},
}};

/// The variables of a process. Every function that returns a number or a flag throws Error(refused) for a value that isn't one of
/// the table's, naming the variable, the value and what works.
class Environment {
 public:
  /// Looks a variable up like getenv(3): null if it isn't set.
  using Lookup = std::function<const char*(const char*)>;
  /// Reads the variables of this process.
  Environment();
  explicit Environment(Lookup lookup) : lookup_(std::move(lookup)) {}

  /// Returns a variable's text; nothing if it isn't set.
  std::optional<std::string_view> text(std::string_view name) const;

  std::string algorithms() const;  ///< TSP_ALGORITHMS; empty: not set
  std::optional<std::string_view> kernels() const { return text("TSP_KERNELS"); }
  std::string_view gemm() const { return text("TSP_GEMM").value_or("auto"); }
  std::string_view log_level() const;  ///< TSP_LOG_LEVEL, which is checked like those; empty: not set
  std::string_view faults() const { return text("TSP_FAULTS").value_or(""); }
  bootstrap::Demand inter() const;     ///< TSP_INTER
  std::string_view rdma() const;       ///< TSP_RDMA, which verbs checks; empty: not set
  std::uint64_t timeout_ns() const;    ///< TSP_TIMEOUT
  std::uint64_t mem_per_rank() const;  ///< TSP_MEM_PER_RANK in bytes; 0: not set
  double link_gbps() const;            ///< TSP_LINK_GBPS; 0: not set
  /// Returns a variable whose values are 0 and 1; false if it isn't set.
  bool flag(std::string_view name) const;

 private:
  Lookup lookup_;
};

/// Throws Error(refused) if a variable is set that `command`, one of tsprun's own, would ignore; the message names tsprun's
/// option for the same. Does nothing in a process that a tsprun started, whose variables that tsprun has set.
void refuse_ignored_variables(const Environment& environment, std::string_view command);

}  // namespace tsprun::detail
