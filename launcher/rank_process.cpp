// Forks a rank, connects its streams, and runs the built-in command or the guardian in it.
#include "launcher/rank_process.h"

#include "core/trace/program_trace.h"
#include "launcher/guardian.h"
#include "launcher/log_sink.h"
#include "launcher/processes.h"
#include "launcher/signals.h"
#include "transport/bootstrap/job_description.h"
#include "transport/cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <netinet/in.h>
#include <optional>
#include <random>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tsprun::detail::launcher {

namespace {

/// Exit code of a rank that lost its tsprun before it began.
constexpr int kOrphaned = 1;

struct Pipe {
  posix::UniqueFd read;
  posix::UniqueFd write;
};

Pipe make_pipe(int rank) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error(Cause::refused, fmt::format("a pipe for rank {}", rank), errno);
  return {posix::UniqueFd(ends[0]), posix::UniqueFd(ends[1])};
}

/// Descriptors for the standard streams. They are above 2, so that dup2() of one can't overwrite another.
struct StandardStreams {
  int in;
  int out;
  int err;
};

void take_standard_streams(const StandardStreams& streams) {
  ::dup2(streams.in, STDIN_FILENO);
  ::dup2(streams.out, STDOUT_FILENO);
  ::dup2(streams.err, STDERR_FILENO);
}

int local_rank_of(const StartPlan& plan, int rank) { return rank - static_cast<int>(bootstrap::job_of(*plan.memory).first_rank); }

/// Runs a built-in command's part in this rank. Errors go to the board, where tsprun reads them.
int run_built_in(const StartPlan& plan, int rank, ReportSink& sink) {
  posix::UniqueFd spare(::fcntl(plan.memory->descriptor(), F_DUPFD_CLOEXEC, 3));
  Failure failed{.cause = Cause::exception};
  try {
    ContextOptions options;
    options.heap_budget = plan.spec->global->mem_per_rank;
    options.reassociate = plan.spec->global->reassociate;
    options.verify = plan.spec->global->verify;
    options.link_gbps = plan.spec->global->link_gbps;
    options.algorithms = plan.spec->global->algorithms;
    options.faults = plan.spec->global->faults.values;
    options.struck_faults = plan.spec->global->struck_faults;
    const int local_rank = local_rank_of(plan, rank);  // before the memory is moved
    Context context = join(std::move(*plan.memory), local_rank, options);
    plan.spec->rank_main(context, sink);
    return 0;
  } catch (const Error& error) {
    failed = failure_of(error);
  } catch (const std::exception& error) {
    failed.detail = error.what();
  } catch (...) {
    failed.detail = "an exception that is no std::exception";
  }
  try {
    const shm::NodeMemory memory = shm::NodeMemory::attach(std::move(spare));
    FlightBoard(memory).note_first_error(rank, failed);
  } catch (const std::exception&) {
    std::fprintf(stderr, "%s\n", failed.detail.c_str());
  }
  return 1;
}

[[noreturn]] void become_built_in(const StartPlan& plan, int rank, posix::UniqueFd results) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.launcher) ::_exit(kOrphaned);
  std::vector<int> kept = plan.memory->inherited();
  kept.insert(kept.end(), {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, results.get()});
  kept.insert(kept.end(), plan.spec->inherited.begin(), plan.spec->inherited.end());
  close_descriptors_except(kept);
  // Ranks ignore the signals that schedulers, and `pkill tsprun`, send to them as well as to tsprun: tsprun decides whether the
  // job ends. It ends ranks by the board's abort word, then by SIGKILL.
  std::vector<int> of_tsprun(kEndingSignals.begin(), kEndingSignals.end());
  of_tsprun.insert(of_tsprun.end(), kAskingSignals.begin(), kAskingSignals.end());
  reset_signals(of_tsprun);
  int code = 1;
  {
    ReportSink sink(std::move(results));
    code = run_built_in(plan, rank, sink);
  }
  std::fflush(nullptr);
  // Not exit(), which would destroy this process's copies of tsprun's static objects.
  ::_exit(code);
}

[[noreturn]] void become_guardian(const StartPlan& plan, int rank) {
  // If tsprun dies while this rank is stopped, the rank must wake to see that; how it ends is up to the guardian (guardian.h).
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);
  if (::getppid() != plan.launcher) ::_exit(kOrphaned);
  std::vector<int> kept = plan.memory->inherited();
  kept.insert(kept.end(), {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, plan.launcher_pidfd});
  const int trace = plan.traces == nullptr ? -1 : plan.traces->descriptor(rank);
  kept.push_back(trace);
  close_descriptors_except(kept);
  const int ranks = plan.spec->global->ranks;
  GuardedProgram program;
  program.arguments = plan.spec->program;
  program.environment = {{"RANK", std::to_string(rank)},
                         {"WORLD_SIZE", std::to_string(ranks)},
                         {"LOCAL_RANK", std::to_string(local_rank_of(plan, rank))},
                         {"LOCAL_WORLD_SIZE", std::to_string(plan.memory->layout().local_ranks)},
                         {"MASTER_ADDR", plan.master_address},
                         {"MASTER_PORT", std::to_string(plan.master_port)},
                         {"TSP_NODE_FD", std::to_string(plan.memory->descriptor())}};
  const auto& more = plan.spec->environment;
  program.environment.insert(program.environment.end(), more.begin(), more.end());
  if (const std::vector<std::string>& faults = plan.spec->global->faults.texts; !faults.empty())
    program.environment.emplace_back("TSP_FAULTS", fmt::format("{}", fmt::join(faults, ";")));
  if (const std::uint64_t budget = plan.spec->global->mem_per_rank; budget != 0)
    program.environment.emplace_back("TSP_MEM_PER_RANK", std::to_string(budget));
  if (const auto& gemm = plan.spec->global->gemm; gemm.given()) program.environment.emplace_back("TSP_GEMM", gemm.text);
  if (plan.spec->global->reassociate) program.environment.emplace_back("TSP_REASSOCIATE", "1");
  if (plan.spec->global->verify) program.environment.emplace_back("TSP_VERIFY", "1");
  if (const double speed = plan.spec->global->link_gbps; speed != 0)
    program.environment.emplace_back("TSP_LINK_GBPS", fmt::format("{}", speed));
  program.environment.emplace_back("TSP_LOG_LEVEL", plan.spec->global->quiet ? "error" : plan.spec->global->log_level);
  program.inherited = plan.memory->inherited();
  if (trace >= 0) {
    program.environment.emplace_back(ProgramTracePlace::kVariable, plan.traces->place(rank, plan.start_ns));
    program.inherited.push_back(trace);
  }
  program.launcher_pidfd = plan.launcher_pidfd;
  program.launcher_group = ::getpgid(plan.launcher);
  program.rank = rank;
  guard_program(program);
}

}  // namespace

RankProcess start_rank(const StartPlan& plan, int rank) {
  const bool built_in = static_cast<bool>(plan.spec->rank_main);
  Pipe out = make_pipe(rank);
  Pipe err = make_pipe(rank);
  std::optional<Pipe> results;
  if (built_in && rank == 0) results = make_pipe(rank);

  const pid_t child = ::fork();
  if (child < 0) throw system_error(Cause::refused, fmt::format("fork for rank {} of {}", rank, plan.spec->global->ranks), errno);
  if (child == 0) {
    ::setpgid(0, 0);
    LogSink::divert(nullptr);
    // A failure to pin doesn't end the job.
    if (plan.cores != nullptr) ::sched_setaffinity(0, sizeof *plan.cores, plan.cores);
    posix::UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const bool has_stdin = rank == 0 && plan.stdin_for_rank_0 >= 0;
    take_standard_streams({has_stdin ? plan.stdin_for_rank_0 : null.get(), out.write.get(), err.write.get()});
    // Lowers the limit last: descriptors that tsprun holds are still open here, and may leave none for /dev/null below it.
    ::setrlimit(RLIMIT_NOFILE, &plan.open_files);
    if (built_in) become_built_in(plan, rank, results ? std::move(results->write) : posix::UniqueFd());
    become_guardian(plan, rank);
  }

  RankProcess process;
  process.pid = child;
  process.pidfd = open_process(child);
  if (!process.pidfd) {
    const int reason = errno;
    ::kill(child, SIGKILL);
    throw system_error(Cause::refused, fmt::format("pidfd_open for rank {}", rank), reason);
  }
  const int ranks = plan.spec->global->ranks;
  const bool prefix = ranks > 1 && !plan.spec->global->no_prefix;
  const std::string text = prefix ? fmt::format("[{}] ", rank) : std::string();
  process.out = LineRelay(std::move(out.read), text, ranks > 1);
  process.err = LineRelay(std::move(err.read), text, ranks > 1);
  if (results) {
    process.results = std::move(results->read);
    ::fcntl(process.results.get(), F_SETFL, O_NONBLOCK);
  }
  return process;
}

int free_port() {
  // Below the ports that Linux gives outgoing connections, since the program listens later, when one of these might have it, and
  // below those of Kubernetes' services. At random, since other jobs of this machine may not listen yet either.
  constexpr int kFirst = 20'000;
  constexpr int kPorts = 9'000;
  std::random_device random;
  const int begin = std::uniform_int_distribution(0, kPorts - 1)(random);
  for (int i = 0; i < kPorts; ++i) {
    const int port = kFirst + (begin + i) % kPorts;
    const posix::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (socket && ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return port;
    if (errno != EADDRINUSE) break;
  }
  throw system_error(Cause::refused, "finding a free port for MASTER_PORT", errno);
}

}  // namespace tsprun::detail::launcher
