// The global options of tsprun.
#pragma once

#include "core/kernels/gemm_library.h"
#include "core/kernels/level.h"
#include "launcher/agreement.h"
#include "launcher/inputs.h"
#include "launcher/option_table.h"
#include "launcher/secret.h"
#include "launcher/trace_options.h"
#include "layers/layout/layout.h"
#include "transport/bootstrap/job_description.h"
#include "transport/bootstrap/placement.h"
#include "transport/fault/spec.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

using bootstrap::block_of;
using bootstrap::node_of;
using bootstrap::RankBlock;

/// Pinning of ranks to cores (--bind). automatic: ranks are pinned if this machine has enough cores for the threads of all of
/// them.
enum class Bind : std::uint8_t { automatic, core, none };

/// Encryption of what travels by tcp (--tls). automatic: between machines.
enum class Encryption : std::uint8_t { automatic, on, off };

/// The global options, each with its default. Members without a description are described by their rows (declare()).
struct GlobalOptions {
  Given<int> ranks{1};
  Given<Layout> layout;  ///< the product of its degrees is `ranks`
  std::array<Given<std::size_t>, kAxes.size()>
      variants;  ///< of the axes (--dp, --tp, --sp), as indices of their rows' lists: variant()
  Given<bootstrap::Demand> intra{bootstrap::Demand::automatic};
  Given<bootstrap::Demand> inter{bootstrap::Demand::automatic};
  Given<Encryption> tls{Encryption::automatic};
  std::string rdma;
  Given<int> nodes{1};  ///< pretended or, with --nnodes, real
  std::string nnodes;   ///< as typed
  Given<int> node_rank{0};
  std::string rendezvous;
  std::string secret_file;
  GivenSecret secret_of_environment;
  Given<std::uint64_t> mem_per_rank{0};  ///< heap budget of a rank in bytes; 0: no budget
  Given<std::uint64_t> timeout_ns{30'000'000'000};
  Given<Bind> bind{Bind::automatic};
  Given<int> threads{1};  ///< compute threads per rank
  Given<kernels::GemmLibrary> gemm{kernels::kUsualGemmLibrary};
  GivenList<fault::Spec> faults;
  bool reassociate = false;
  bool verify = false;
  Given<double> link_gbps{0};  ///< speed that links are slowed down to, in 10⁹ bytes per second; 0: as fast as they are
  std::string trace;
  TraceOptions trace_options;
  std::string json;
  std::string log_level = "info";
  bool quiet = false;
  bool no_prefix = false;

  // Values that aren't options: derived from the command line, or carried over from earlier attempts.
  std::size_t columns = static_cast<std::size_t>(-1);  ///< of tables on tsprun's stdout (columns.h), which ranks don't see
  std::vector<std::string> words;                      ///< the command line, from after the program's name up to `--`
  std::vector<std::string> program;                    ///< what follows `--`: the program of `run` and its arguments
  Agreement typed;                                     ///< options that must be the same on all nodes
  Inputs inputs;                                       ///< program, kernels and files that must be the same on all nodes
  bool several_machines = false;    ///< --nnodes of 2 or more: one tsprun per node; else this tsprun runs all nodes
  std::uint64_t struck_faults = 0;  ///< bit i: faults[i] struck in an earlier attempt of the same job
  std::uint64_t attempt = 0;        ///< number of earlier attempts of the same job
  std::string algorithms;           ///< TSP_ALGORITHMS
  kernels::Level kernel_level = kernels::best_level();  ///< TSP_KERNELS, else the machine's best

  Given<std::size_t>& variant(AxisKind axis) { return variants[index_of(axis)]; }
  const Given<std::size_t>& variant(AxisKind axis) const { return variants[index_of(axis)]; }
  /// Adds the rows of the global options.
  void declare(OptionTable& table);
};

/// Returns how the user chose the number of ranks, for messages: "--layout tsp=6", "-n 6".
std::string ranks_as_typed(const GlobalOptions& options);
/// Returns the ranks that this tsprun starts: all of them, or with --nnodes those of its node.
RankBlock ranks_here(const GlobalOptions& options);
/// Returns true if the ranks need a store to find each other, because some of them talk over sockets or RDMA verbs.
bool needs_store(const GlobalOptions& options);
/// Returns true if connections to the store and data over TCP are encrypted with TLS.
bool uses_tls(const GlobalOptions& options);

/// Use that a command makes of the number of ranks that the options give.
enum class RankUse : std::uint8_t {
  none,      ///< starts none, and refuses -n and --layout
  on_paper,  ///< starts none: what -n or --layout ask for is calculated
  job,       ///< starts them in one job
  jobs       ///< starts several jobs; validates the options again for each, and until then not what depends on the ranks
};
/// Largest number of ranks for a command that starts none.
inline constexpr std::int64_t kMostRanksOnPaper = 1 << 16;

/// Turns texts into values and checks them together. Throws Error(Cause::refused) naming the option, its value and the nearest
/// values that work. With RankUse::job it also refuses what this machine can't do: too many processes or open files, or more
/// memory than there is.
void validate_global(GlobalOptions& options, RankUse use, int processes_per_rank);

/// Returns a line for each option that was given but has no effect in this job, with its name and the reason. Call after
/// validate_global() with the same `use`.
std::vector<std::string> ignored_options(const GlobalOptions& options, RankUse use);

}  // namespace tsprun::detail::launcher
