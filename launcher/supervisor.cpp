// Prepares limits, node memory and store for a job, runs it, and reports its end.
#include "launcher/supervisor.h"

#include "core/memory/heap.h"
#include "launcher/cluster.h"
#include "launcher/gemm_trial.h"
#include "launcher/job.h"
#include "launcher/link_report.h"
#include "launcher/model/trace_file.h"
#include "launcher/secret.h"
#include "launcher/transport_trial.h"
#include "transport/bootstrap/job_description.h"
#include "transport/cause.h"
#include "transport/factory.h"
#include "transport/machine.h"
#include "transport/posix.h"
#include "transport/verbs/choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <sys/resource.h>

namespace tsprun::detail::launcher {

namespace {

constexpr std::uint64_t kSmallestHeap = std::uint64_t{1} << 20;

/// Returns `ulimit -f`, since the ranks' memory counts as a file.
std::uint64_t limit_file_size() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

/// Returns how much address space a rank's heap reserves; under a budget more than the budget, as far as limits allow: see Heap.
std::uint64_t heap_bytes(const GlobalOptions& global) {
  const auto ranks = static_cast<std::uint64_t>(ranks_here(global).count);
  // A rank maps the whole node memory, and needs as much address space again for itself.
  const std::uint64_t share = machine::limit_address_space() / 2 / ranks;
  if (global.mem_per_rank != 0) {
    // At most half of the largest file: the memory's other parts take a small part of the rest.
    const std::uint64_t room = std::min(share, limit_file_size() / 2 / ranks) / shm::kPage * shm::kPage;
    const std::uint64_t least = (global.mem_per_rank + shm::kPage - 1) / shm::kPage * shm::kPage;
    return std::max(least, std::min(Heap::reservation_for(global.mem_per_rank), room));
  }
  const std::uint64_t heap = std::min(shm::default_heap_bytes(), share / shm::kPage * shm::kPage);
  if (heap < kSmallestHeap) {
    throw Error(Cause::refused,
                fmt::format("-n {}: `ulimit -v` leaves {} bytes of address space for each rank's heap, {} are needed; raise the "
                            "limit or try fewer ranks",
                            global.ranks, heap, kSmallestHeap));
  }
  return heap;
}

/// Raises the soft limit of open files to the hard limit while it lives.
class RaisedOpenFiles {
 public:
  RaisedOpenFiles() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit raised = before_;
    raised.rlim_cur = raised.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &raised);
  }
  RaisedOpenFiles(const RaisedOpenFiles&) = delete;
  RaisedOpenFiles& operator=(const RaisedOpenFiles&) = delete;
  ~RaisedOpenFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }

  const rlimit& before() const { return before_; }

 private:
  rlimit before_{};
};

/// Throws Error(refused) if `ulimit -f` is too small for a node's memory. Without this check a process that exceeds the limit is
/// ended by a signal that explains nothing.
void check_file_limit(std::uint64_t bytes) {
  const std::uint64_t limit = limit_file_size();
  if (limit >= bytes) return;
  throw Error(
      Cause::refused,
      fmt::format("ulimit -f: files may have {} bytes, and the ranks' memory counts as one of {} (most of it never used); "
                  "try ulimit -f unlimited, or a smaller --mem-per-rank",
                  limit, bytes));
}

/// Returns what the ranks of a node must know. `store`: address of the job's store; empty if ranks need none.
bootstrap::JobDescription describe(const GlobalOptions& global, int node, const std::string& store) {
  const RankBlock block = block_of(global.ranks, global.nodes, node);
  bootstrap::JobDescription job;
  job.first_rank = static_cast<std::uint32_t>(block.first);
  job.node = static_cast<std::uint32_t>(node);
  job.nodes = static_cast<std::uint32_t>(global.nodes);
  // Nodes of one machine share its cores; if there are more nodes than cores, a node has less than one core, and its ranks must
  // not spin.
  job.cores = static_cast<std::uint32_t>(machine::usable_cores() * block.count / ranks_here(global).count);
  job.timeout_ns = global.timeout_ns;
  job.supervised = 1;
  job.tls = uses_tls(global) ? 1 : 0;
  job.intra = global.intra;
  job.inter = global.inter;
  global.rdma.copy(job.rdma, sizeof job.rdma - 1);
  if (store.size() >= sizeof job.store) throw Error(Cause::refused, fmt::format("{}: too long an address for ranks", store));
  store.copy(job.store, sizeof job.store - 1);
  return job;
}

/// Makes the memories of the nodes whose ranks this tsprun starts, and describes the job in them.
std::vector<shm::NodeMemory> make_memories(const GlobalOptions& global, const std::string& store,
                                           const bootstrap::Secret& secret) {
  std::vector<shm::NodeMemory> memories;
  for (int node = 0; node < global.nodes; ++node) {
    if (global.several_machines && node != global.node_rank) continue;
    const shm::NodeLayout layout{
        .local_ranks = static_cast<std::uint32_t>(block_of(global.ranks, global.nodes, node).count),
        .heap_bytes = heap_bytes(global),
        .world_size = static_cast<std::uint32_t>(global.ranks),
    };
    check_file_limit(layout.total_bytes());
    memories.push_back(shm::NodeMemory::create_memfd(layout));
    bootstrap::describe_job(memories.back(), describe(global, node, store), secret);
    // Ranks that wait for sockets can't sleep on a futex, so each gets a bell with a descriptor.
    if (!store.empty()) memories.back().hang_bells();
  }
  return memories;
}

/// Warns as spdlog::warn does, but through the job's stderr: its reader may be slow, and a signal must end the wait for it.
void warn(Job& job, const std::string& line) {
  if (spdlog::should_log(spdlog::level::warn)) job.print_on_stderr(fmt::format("tsprun: warning: {}\n", line));
}

/// Reports a failure for a job that succeeded but whose trace couldn't be written; all other results stay. Returns tsprun's exit
/// code.
int judge_trace(Job& job, Report& report, const std::string& trouble) {
  if (trouble.empty()) return job.exit_code();
  if (job.failure().cause != Cause::none) {
    warn(job, trouble);
    return job.exit_code();
  }
  report.set_failure(refusal(trouble), {});
  job.print_on_stderr(fmt::format("tsprun: the job is done, but its trace isn't: {}\n", trouble));
  return 1;
}

TraceEnd end_of(const Job& job) {
  return {.failure = job.failure(), .when_ns = job.ending_since_ns(), .zero_ns = job.start_ns()};
}

/// Writes a trace of the failure, unless all ranks had finished: the ranks' own events are lost. An error here only causes a
/// warning, as the job has failed already.
void trace_failure(const GlobalOptions& global, Job& job) {
  if (global.trace.empty() || ranks_here(global).first != 0) return;
  bool all_finished = true;
  for (int rank = 0; rank < global.ranks; ++rank) all_finished = all_finished && job.board().life(rank) == Life::finished;
  if (all_finished) return;
  try {
    write_trace_of_job(job.board(), {0, global.ranks}, global.faults.values, end_of(job), nullptr, global.trace);
    warn(job, fmt::format("--trace {}: holds the failure and the faults that struck; the ranks' events are lost", global.trace));
  } catch (const Error& error) {
    warn(job, error.what());
  }
}

/// Writes the trace of a program's ranks on this node. Returns why it couldn't be written; empty: it was.
std::string trace_program(const GlobalOptions& global, Job& job, const RankTraces& traces) {
  const std::string path = trace_of_node(global.trace, global.several_machines ? global.node_rank.value : 0);
  try {
    const std::vector<int> missing =
        write_trace_of_job(job.board(), ranks_here(global), global.faults.values, end_of(job), &traces, path);
    if (!missing.empty()) {
      warn(job, fmt::format("--trace {}: no events of rank{} {}, which didn't leave the job by destroying the Context or by exit",
                            path, missing.size() == 1 ? "" : "s", fmt::join(missing, ", ")));
    }
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// Returns why the ranks that this tsprun starts can't use the transport that an option demands between nodes; empty if they can,
/// or if nothing is demanded. Opens devices and closes them again.
std::string transport_trouble(const GlobalOptions& options) {
  if (options.nodes == 1) return {};
  for (const Factory* kind : kFactories) {
    if (kind->shortage == nullptr) continue;
    const bool demanded = options.inter == demand_for(kind->name);
    if (!demanded && !verbs::DeviceChoice::parse(options.rdma).names_ports()) continue;
    const std::string option =
        demanded ? fmt::format("--inter {}", kind->name) : fmt::format("{} {}", kind->device_option, options.rdma);
    try {
      const std::string shortage = kind->shortage(options.rdma, ranks_here(options).count, options.ranks - 1);
      if (!shortage.empty()) return fmt::format("{}: {}", option, shortage);
    } catch (const Error& error) {
      const std::string what = error.what();
      return what.starts_with(kind->device_option) ? what : fmt::format("{}: {}", option, what);
    }
  }
  return {};
}

/// Returns why ranks can't multiply matrices by the library that is chosen; empty if they can, or if they don't multiply. On
/// several machines Cluster tries it, and compares.
std::string gemm_trouble(const GlobalOptions& options) {
  if (options.several_machines || !options.inputs.kernels) return {};
  try {
    try_gemm_library(options.kernel_level);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

int run_job(const JobSpec& spec, Report& report) {
  const GlobalOptions& global = *spec.global;
  // Before any descriptor is opened for a rank.
  const RaisedOpenFiles open_files;
  std::string trouble = spec.trouble.empty() ? transport_trouble(global) : spec.trouble;
  if (trouble.empty()) trouble = gemm_trouble(global);
  JobNet net{LinkChoices(global), {}, {}};
  bootstrap::Secret secret;
  std::string store;
  if (global.several_machines) {
    secret = load_secret(global.secret_file, global.secret_of_environment, global.timeout_ns);
    net.cluster.emplace(global, report.root().value("command", std::string()), tls::Credentials(secret, uses_tls(global)),
                        trouble);
    net.cluster->on_choice = [&net](std::string_view key, std::string_view value) { net.choices.heard(key, value); };
    net.cluster->patience_ns = std::max(spec.patience.after_signal_ns, spec.patience.after_failure_ns);
    store = net.cluster->store_address();
  } else if (!trouble.empty()) {
    throw Error(Cause::refused, trouble);
  } else if (needs_store(global)) {
    if (const std::string no_way = loopback_trouble(); !no_way.empty()) throw Error(Cause::refused, no_way);
    secret = bootstrap::random_secret();
    net.store.emplace("127.0.0.1", 0, tls::Credentials(secret, uses_tls(global)));
    net.store->keep_free(descriptors_of_a_start(global.ranks));
    net.store->on_set = [&net](int, const std::string& key, const std::vector<std::byte>& value) {
      net.choices.heard(key, {reinterpret_cast<const char*>(value.data()), value.size()});
    };
    store = net.store->address();
  }
  if (!machine::has_proc())
    spdlog::warn(
        "/proc isn't mounted: stopped ranks can't be told from slow ones, what programs leave behind isn't found, and "
        "limits of cgroups aren't seen");
  Job job(spec, make_memories(global, store, secret), net);
  // Every forked rank would write what is left in stdio's buffers once more.
  std::fflush(nullptr);
  spdlog::debug("{} ranks on {} cores", ranks_here(global).count, machine::usable_cores());
  std::optional<RankTraces> traces;
  if (!spec.rank_main && !global.trace.empty()) traces.emplace(ranks_here(global), global.trace_options.flows);
  job.start(open_files.before(), traces ? &*traces : nullptr);
  if (net.store) net.store->keep_free(kDescriptorsOfAJob);
  if (net.cluster) net.cluster->keep_free(kDescriptorsOfAJob);
  job.watch();

  if (report.wanted() && !net.choices.trivial()) report.root()["transports"] = net.choices.json();
  for (const auto& [key, value] : job.results().items()) report.root()[key] = value;
  if (report.wanted() && global.ranks > 1) report.root()["links"] = links_json(job.board());
  const std::vector<FaultOutcome> outcomes = fault_outcomes(global.faults.values, job.board(), job.failure());
  report.note_faults(outcomes, job.start_ns());
  if (job.failure().cause != Cause::none) {
    report.set_failure(job.failure(), waiting_ranks(job.failure(), job.records()));
    report.root()["failure"]["seconds"] = static_cast<double>(job.ending_since_ns() - job.start_ns()) * 1e-9;
    if (!traces) trace_failure(global, job);
    job.print_on_stderr(print_verdict(job.failure(), job.records(), global.nodes));
  }
  for (const std::string& line : fault_warnings(outcomes, global.struck_faults)) warn(job, line);
  std::vector<std::uint64_t> without_core;
  for (const RankRecord& record : job.records()) without_core.push_back(record.waited_for_core_ns);
  for (const std::string& line : link_warnings(job.board(), posix::now_ns() - job.start_ns(), without_core)) warn(job, line);
  const std::string trouble_of_trace =
      traces ? trace_program(global, job, *traces) : report.root().value(kTraceTrouble, std::string());
  report.root().erase(kTraceTrouble);
  job.take_late_signals();
  if (job.asked_to_end_by() != 0 && job.failure().cause != Cause::none && job.failure().cause != Cause::interrupted)
    report.root()["failure"]["asked_to_end_by"] = job.asked_to_end_by();
  return judge_trace(job, report, trouble_of_trace);
}

int run_model_job(const GlobalOptions& global, Report& report, const std::function<void(Context&, ReportSink&)>& rank_main,
                  int inherited) {
  return run_job({.global = &global, .rank_main = rank_main, .inherited = {inherited}}, report);
}

}  // namespace tsprun::detail::launcher
