// The global options of tsprun: one struct with defaults, which CLI11 fills and validate_global() checks.
#pragma once

#include "launcher/agreement.h"
#include "launcher/inputs.h"
#include "launcher/secret.h"
#include "launcher/trace_options.h"
#include "layers/layout/layout.h"
#include "transport/bootstrap/placement.h"
#include "transport/fault/spec.h"

#include <CLI/CLI.hpp>

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

/// Values of the global options. Members named …_text hold an option as it was typed; validate_global() sets the parsed values
/// below.
struct GlobalOptions {
  std::string ranks_text;
  std::string layout_text;
  std::string sequence_text = "gather";
  std::string tensor_text = "plain";
  std::string intra = "auto";
  std::string inter = "auto";
  std::string tls = "auto";
  std::string rdma;
  std::string nodes_text;
  std::string nnodes_text;
  std::string node_rank_text;
  std::string rendezvous;
  std::string secret_file;
  GivenSecret secret_of_environment;
  std::string mem_per_rank_text;
  std::string timeout_text = "30";
  std::string bind_text;
  std::string threads_text;
  std::string trace;
  TraceOptions trace_options;
  std::string json;
  std::string log_level = "info";
  bool reassociate = false;
  bool verify = false;
  bool quiet = false;
  bool no_prefix = false;
  std::vector<std::string> fault_texts;
  std::vector<std::string> words;    ///< the command line, from after the program's name up to `--`
  std::vector<std::string> program;  ///< what follows `--`: the program of `run` and its arguments
  Agreement typed;                   ///< options that must be the same on all nodes
  Inputs inputs;                     ///< program, kernels and files that must be the same on all nodes

  // Results of validation.
  int ranks = 1;
  int nodes = 1;
  bool several_machines = false;   ///< --nnodes of 2 or more: one tsprun per node; else this tsprun runs all nodes
  int node_rank = 0;               ///< number of this tsprun's node, with several_machines
  Layout layout;                   ///< the product of its degrees is `ranks`
  std::uint64_t mem_per_rank = 0;  ///< heap budget of a rank in bytes; 0: no budget
  std::uint64_t timeout_ns = 30'000'000'000;
  Bind bind = Bind::automatic;
  int threads = 1;  ///< compute threads per rank
  std::vector<fault::Spec> faults;
  std::uint64_t struck_faults = 0;  ///< bit i: faults[i] struck in an earlier attempt of the same job
  std::uint64_t attempt = 0;        ///< number of earlier attempts of the same job
};

/// Returns the ranks that this tsprun starts: all of them, or with --nnodes those of its node.
RankBlock ranks_here(const GlobalOptions& options);
/// Returns true if the ranks need a store to find each other, because some of them talk over sockets or RDMA verbs.
bool needs_store(const GlobalOptions& options);
/// Returns true if connections to the store and data over TCP are encrypted with TLS.
bool uses_tls(const GlobalOptions& options);
/// Declares the global options on the application and binds them to `options`.
void add_global_options(CLI::App& app, GlobalOptions& options);

/// Use that a command makes of the number of ranks that the options give.
enum class RankUse : std::uint8_t {
  on_paper,  ///< starts none; the numbers are calculated
  job,       ///< starts them in one job
  jobs       ///< starts several jobs; validates the options again for each, and until then not what depends on the ranks
};
/// Largest number of ranks for a command that starts none.
inline constexpr std::int64_t kMostRanksOnPaper = 1 << 16;

/// Turns the texts into values. Throws Error(Cause::refused) naming the option, its value and the nearest values that work. With
/// RankUse::job it also refuses what this machine can't do: too many processes or open files, or more memory than there is.
void validate_global(GlobalOptions& options, RankUse use, int processes_per_rank);

/// Returns a line for each option that was given but has no effect in this job, with its name and the reason. Call after
/// validate_global().
std::vector<std::string> ignored_options(const GlobalOptions& options);

/// Parses a size: "64K", "64KB", "64KiB", "16M", "2G" or "1048576". Returns bytes; suffixes are powers of 1024. Throws
/// Error(Cause::refused) naming `option`.
std::uint64_t parse_size(const std::string& option, const std::string& text);
/// Returns the shortest text that parse_size() reads back exactly: "64K", "1000".
std::string format_size(std::uint64_t bytes);
/// Parses a whole number from `lowest` to `highest`, both included. Throws Error(Cause::refused) naming `option`, the value and
/// the nearest number that works.
std::int64_t parse_integer(const std::string& option, const std::string& text, std::int64_t lowest, std::int64_t highest);

}  // namespace tsprun::detail::launcher
