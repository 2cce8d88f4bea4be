// The global options of tsprun: one struct with defaults, parsed by CLI11, validated in one place.
#pragma once

#include "launcher/agreement.h"
#include "launcher/inputs.h"
#include "launcher/layout.h"
#include "launcher/trace_options.h"
#include "transport/bootstrap/placement.h"
#include "transport/fault/spec.h"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace tsprun::launcher {

using bootstrap::block_of;
using bootstrap::node_of;
using bootstrap::RankBlock;

enum class Bind : std::uint8_t { automatic, core, none };

/// Texts as typed stand beside the values that validate_global() makes of them.
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
  std::vector<std::string> words;    ///< the command line without tsprun itself and what stands after `--`
  std::vector<std::string> program;  ///< what stands after `--`: for `run`
  Agreement typed;                   ///< what nodes must have been started with in common
  Inputs inputs;                     ///< and what their ranks must compute with and from

  // Results of validation.
  int ranks = 1;
  int nodes = 1;
  bool several_machines = false;   ///< --nnodes: one tsprun a node; else all nodes are this tsprun's
  int node_rank = 0;               ///< of this tsprun, with several_machines
  Layout layout;                   ///< its product is `ranks`
  std::uint64_t mem_per_rank = 0;  ///< bytes; 0: no budget
  std::uint64_t timeout_ns = 30'000'000'000;
  Bind bind = Bind::automatic;
  int threads = 1;  ///< compute threads of a rank
  std::vector<fault::Spec> faults;
  std::uint64_t struck_faults = 0;  ///< a bit for each that struck in an earlier attempt of the same job
  std::uint64_t attempt = 0;        ///< how many earlier ones there were
};

/// The ranks that this tsprun starts.
RankBlock ranks_here(const GlobalOptions& options);
/// Ranks find each other by way of a store: some of them talk over sockets or verbs.
bool needs_store(const GlobalOptions& options);
/// The store's links and data over tcp are encrypted.
bool uses_tls(const GlobalOptions& options);
/// Declares the options on the application.
void add_global_options(CLI::App& app, GlobalOptions& options);

/// What a command does with the ranks that the options speak of.
enum class RankUse : std::uint8_t {
  on_paper,  ///< starts none: as many as theory counts
  job,       ///< starts them on this machine, in one job
  jobs       ///< starts several jobs and validates the options of each anew: what depends on the number of ranks is left to that
};
/// As many ranks as can be spoken of on paper.
inline constexpr std::int64_t kMostRanksOnPaper = 1 << 16;

/// Turns texts into values. Throws Error(Cause::refused) naming the option, its value and the nearest values that work.
/// For a job also what this machine can't do is refused (processes, descriptors, memory).
void validate_global(GlobalOptions& options, RankUse use, int processes_per_rank);

/// A line for each option that was given and changes nothing in a job, naming it and why. After validate_global().
std::vector<std::string> ignored_options(const GlobalOptions& options);

/// "64K", "64KB", "64KiB", "16M", "2G", "1048576": bytes, powers of 1024. Throws Error(Cause::refused) naming `option`.
std::uint64_t parse_size(const std::string& option, const std::string& text);
/// The shortest exact text: "64K", "1000".
std::string format_size(std::uint64_t bytes);
/// A whole number between two bounds. Throws Error(Cause::refused) naming `option`, the value and the nearest that works.
std::int64_t parse_integer(const std::string& option, const std::string& text, std::int64_t lowest, std::int64_t highest);

}  // namespace tsprun::launcher
