// The event loop of a job: events, signals, and news from other nodes.
#include "launcher/job.h"

#include "launcher/binding.h"
#include "launcher/log_sink.h"
#include "launcher/model/trace_file.h"
#include "launcher/processes.h"
#include "launcher/standard_output.h"
#include "transport/cause.h"
#include "transport/machine.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sys/prctl.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;
/// Longest time between two looks at the abort word, for which there is no event, and at the terminal's foreground, in
/// milliseconds.
constexpr int kTick_ms = 100;
constexpr int kEndingTick_ms = 10;
/// Longest time between the signals that a scheduler sends to all processes of a job.
constexpr std::uint64_t kSignalledTogether_ns = 250'000'000;
/// Added to a signal's number, this gives the exit code of a program that ended because of it, as shells count.
constexpr int kExitBySignal = 128;

}  // namespace

Job::Job(const JobSpec& spec, std::vector<shm::NodeMemory> memories, JobNet& net)
    : spec_(&spec),
      net_(&net),
      here_(ranks_here(*spec.global)),
      boards_(std::move(memories)),
      board_(boards_.board()),
      stdout_(STDOUT_FILENO),
      stderr_(STDERR_FILENO),
      own_pidfd_(open_process(::getpid())),
      records_(static_cast<std::size_t>(spec.global->ranks)),
      signs_(records_.size()) {
  if (!own_pidfd_) throw system_error(Cause::refused, "pidfd_open of tsprun itself (Linux 5.3 or newer is needed)", errno);
  if (const int error = why_no_waitid(own_pidfd_); error != 0) {
    throw system_error(Cause::refused,
                       "waitid of a pidfd, by which tsprun sees how ranks end, is forbidden here (by a filter of system "
                       "calls, or by a Linux older than 5.4)",
                       error);
  }
  LogSink::divert(&stderr_);
}

Job::~Job() {
  if (stderr_.pending()) drain(stderr_);
  outlive(request_);
  LogSink::divert(nullptr);
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (processes_[rank].pid > 0 && !records_[rank].end.ended) signal_group(processes_[rank].pid, SIGKILL);
  }
  if (living_ > 0) kill_children(strangers_, stranger_groups_);
}

void Job::start(const rlimit& open_files, const RankTraces* traces) {
  start_ns_ = posix::now_ns();
  killed_before_ = machine::out_of_memory_kills();
  strangers_ = children();
  // Processes that a killed rank of a program leaves behind become tsprun's children, so that they can be ended too. Those that a
  // stranger leaves behind do, too; they are in its process group, or tsprun's, and ranks' are in neither.
  if (!built_in()) ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  stranger_groups_ = {::getpgrp()};
  for (const pid_t stranger : strangers_) stranger_groups_.push_back(::getpgid(stranger));
  const GlobalOptions& global = *spec_->global;
  if (!built_in() || spec_->reads_stdin) terminal_.emplace();
  StartPlan plan;
  plan.spec = spec_;
  plan.launcher_pidfd = own_pidfd_.get();
  plan.launcher = ::getpid();
  plan.master_address = "127.0.0.1";
  if (net_->cluster) {
    plan.master_address = bootstrap::parse_host_port("--rendezvous", global.rendezvous).host;
    plan.master_port = net_->cluster->master_port();
  } else if (!built_in()) {
    plan.master_port = free_port();
  }
  plan.stdin_for_rank_0 = terminal_ ? terminal_->rank_end() : -1;
  plan.open_files = open_files;
  plan.traces = traces;
  plan.start_ns = start_ns_;
  const bool bind =
      global.bind == Bind::core || (global.bind == Bind::automatic && here_.count * global.threads <= machine::usable_cores());
  std::vector<cpu_set_t> cores;
  if (bind) cores = cores_of_ranks(here_.count, global.threads);

  processes_.resize(records_.size());
  for (int rank = here_.first; rank < here_.first + here_.count; ++rank) {
    plan.memory = boards_.home(rank);
    if (!cores.empty()) plan.cores = &cores[static_cast<std::size_t>(rank - here_.first)];
    process(rank) = start_rank(plan, rank);
    records_[static_cast<std::size_t>(rank)].pid = static_cast<std::uint32_t>(process(rank).pid);
    ++living_;
    spdlog::debug("rank {} is process {}", rank, process(rank).pid);
    // A thousand forks take seconds, and a signal that ends the job must stop them.
    handle_signals();
    if (ending_) break;
  }
  if (net_->store) loop_.watch(net_->store->descriptor(), Source::store);
  if (net_->cluster) loop_.watch(net_->cluster->descriptor(), Source::cluster);
  if (terminal_) terminal_->started();

  started_ = true;
  loop_.watch(signals_.descriptor(), Source::signals);
  for (int rank = here_.first; rank < here_.first + here_.count; ++rank) {
    loop_.watch(process(rank).pidfd.get(), Source::process, rank);
    loop_.watch(process(rank).results.get(), Source::rank_results, rank);
  }
}

void Job::watch() {
  while (living_ > 0 || !others_done()) {
    arrange_flow();
    const bool soon = ending_ || (net_->cluster && net_->cluster->ending());
    for (const Event& event : loop_.wait(soon ? kEndingTick_ms : tick_ms())) handle(event);
    share_news();
    if (std::exchange(news_, false)) {
      // Ranks that wait for a rank that has ended look at the board at once, not at the end of their sleep. Done once for all
      // that ended.
      tell_others();
      boards_.ring_all();
    }
    stdout_.flush();
    stderr_.flush();
    watch_output();
    if (!ending_ && boards_.aborted()) begin_ending(std::nullopt);
    watch_time_to_end();
    if (ending_) end_patiently();
  }
  kill_children(strangers_, stranger_groups_);
  if (ending_) {
    complete_abort();
    note_activities();
    failure_ = boards_.failure();
    if (failure_.cause == Cause::none) failure_ = own_failure_;
  } else if (programs_until_ns_ != 0) {
    failure_ = interruption(request_.signal());
    ending_since_ns_ = posix::now_ns();
  }
  if (!ending_ && spec_->wind_down != nullptr && spec_->wind_down->ended_by() != 0) {
    failure_.cause = Cause::interrupted;
    failure_.code = spec_->wind_down->ended_by();
    failure_.detail = fmt::format("{}: the ranks saved and ended", signal_name(failure_.code));
    if (request_.signal() == 0 && stdout_.error() != 0) failure_ = output_failure(stdout_.error());
    ending_since_ns_ = posix::now_ns();
  }
  if (net_->cluster && net_->cluster->ending() && net_->cluster->ending()->failure.cause != Cause::none) {
    failure_ = net_->cluster->ending()->failure;
    if (!ending_) ending_since_ns_ = posix::now_ns();
  }
  if (net_->cluster && net_->cluster->ending() && !net_->cluster->ending()->trouble.empty())
    results_[kTraceTrouble] = net_->cluster->ending()->trouble;
  pass_on_the_rest();
  if (failure_.cause == Cause::none && stdout_.error() != 0 && stdout_.error() != EPIPE) {
    failure_ = output_failure(stdout_.error());
    ending_since_ns_ = posix::now_ns();
  }
}

void Job::handle(const Event& event) {
  switch (event.source) {
    case Source::signals: handle_signals(); break;
    case Source::terminal: terminal_->pump(); break;
    case Source::process:
      if (alive(event.rank)) rank_ended(event.rank);
      break;
    case Source::rank_stdout: read_relay(process(event.rank).out, stdout_); break;
    case Source::rank_stderr: read_relay(process(event.rank).err, stderr_); break;
    case Source::rank_results: read_results(event.rank); break;
    case Source::stdout_room:
    case Source::stderr_room:
    case Source::store:
    case Source::cluster: break;  // handled in every round
  }
}

void Job::handle_signals() {
  while (const std::optional<int> signal = signals_.next()) handle_signal(*signal);
}

void Job::handle_signal(int signal) {
  switch (signal) {
    case SIGCHLD: follow_stops(); break;
    case SIGTSTP: stop_all(); break;
    case SIGCONT:
      signal_ranks(SIGCONT);
      // Time limits don't run while all are stopped.
      if (ending_) ending_since_ns_ = killed_ns_ = posix::now_ns();
      if (wind_down_until_ns_ != 0) wind_down_until_ns_ = posix::now_ns() + spec_->wind_down->within_ns();
      if (programs_until_ns_ != 0) programs_until_ns_ = posix::now_ns() + spec_->patience.after_signal_ns;
      break;
    case SIGUSR1:
    case SIGUSR2: handle_asking_signal(signal); break;
    default: interrupt(signal); break;
  }
}

/// Asks ranks that can to save and go on, passes the signal on to programs that handle it, and else prints the flight board.
void Job::handle_asking_signal(int signal) {
  const std::uint64_t now = posix::now_ns();
  WindDown* const wind_down = spec_->wind_down;
  if (wind_down != nullptr && signal == wind_down->save_signal()) {
    if (ending_ || (asked_to_save_ns_ != 0 && now - asked_to_save_ns_ < kOneRequest_ns)) return;
    asked_to_save_ns_ = now;
    wind_down->ask_to_save();
    stderr_.append(fmt::format("tsprun: {}: saving after this step, and going on\n", signal_name(signal)));
    return;
  }
  if (!pass_on(signal)) stderr_.append(print_board(board_, now));
}

/// Passes a signal on to the processes of programs that handle it: others, such as a shell in whose script a program runs, would
/// be ended by it. Returns false if no process handles it.
bool Job::pass_on(int signal) {
  if (built_in()) return false;
  bool any = false;
  for (const posix::ProcessStat& each : all_processes()) {
    for (int rank = here_.first; rank < here_.first + here_.count; ++rank) {
      const pid_t guardian = process(rank).pid;
      if (!alive(rank) || each.group != guardian || each.pid == guardian || !handles(each.pid, signal)) continue;
      any = ::kill(each.pid, signal) == 0 || any;
    }
  }
  return any;
}

/// Waits for tsprun's own signal before a rank that ended by such a signal is called the culprit: schedulers signal a job's ranks
/// and its tsprun together, one process after the other.
void Job::hear_own_signals(const RankEnd& end) {
  handle_signals();
  if (!asks_to_end(end.signal) && !asks_to_end(end.exit_code - kExitBySignal)) return;
  const std::uint64_t until = posix::now_ns() + kSignalledTogether_ns;
  while (!ending_ && !lets_ranks_end()) {
    const std::uint64_t now = posix::now_ns();
    if (now >= until) return;
    if (const auto signal = signals_.next_within(static_cast<int>((until - now) / kMillisecond) + 1)) handle_signal(*signal);
  }
}

/// Asks the ranks to save and end, if they can. Returns true if they have now been asked and have their time for it.
bool Job::ask_to_wind_down(int signal) {
  WindDown* const wind_down = spec_->wind_down;
  if (wind_down == nullptr || wind_down->within_ns() == 0) return false;
  if (ending_ || living_ == 0 || wind_down_until_ns_ != 0) return false;
  wind_down->ask(signal);
  wind_down_until_ns_ = posix::now_ns() + wind_down->within_ns();
  stderr_.append(fmt::format("tsprun: {}: saving after this step, within {:g} s; a second signal ends the job at once\n",
                             signal_name(signal), static_cast<double>(wind_down->within_ns()) * 1e-9));
  return true;
}

/// Passes the signal on to programs, on all nodes, and lets them end by themselves. Returns true if they have time for it.
bool Job::ask_programs_to_end(int signal) {
  if (built_in() || spec_->patience.after_signal_ns == 0) return false;
  if (ending_ || !started_ || programs_until_ns_ != 0) return false;
  signal_ranks(signal);
  programs_until_ns_ = posix::now_ns() + spec_->patience.after_signal_ns;
  if (net_->cluster) net_->cluster->tell_asked(signal);
  return true;
}

/// Ends a job whose results reach nobody, in good order if it can.
void Job::watch_output() {
  if (stdout_.error() == 0 || ending_) return;
  handle_signals();  // the one that ended the reader may have come here, too, and gives ranks time to end
  if (ending_ || lets_ranks_end()) return;
  const int signal = stdout_.error() == EPIPE ? SIGPIPE : SIGTERM;
  if (!ask_to_wind_down(signal)) give_up(output_failure(stdout_.error()), signal);
}

/// Ends a job whose ranks were asked to end and have had their time.
void Job::watch_time_to_end() {
  if (ending_ || !lets_ranks_end()) return;
  const std::uint64_t now = posix::now_ns();
  if (wind_down_until_ns_ != 0) {
    if (now > wind_down_until_ns_) end_interrupted(spec_->wind_down->asked());
    return;
  }
  if (now > programs_until_ns_) return begin_ending(std::nullopt);
  if (said_programs_end_ || living_ == 0 || now - request_.when_ns() < kOneRequest_ns) return;
  said_programs_end_ = true;
  stderr_.append(fmt::format("tsprun: {}: the programs may take {:g} s to end (--save-within); a second signal kills them\n",
                             signal_name(request_.signal()), static_cast<double>(spec_->patience.after_signal_ns) * 1e-9));
}

/// Acts on a signal that asks tsprun to end.
void Job::interrupt(int signal) {
  const bool saves_already = wind_down_until_ns_ != 0 && request_.signal() == 0;  // because nobody reads the output
  if (!request_.take(signal, posix::now_ns())) return;
  if (saves_already) return spec_->wind_down->ask(signal);
  if (ask_to_wind_down(signal) || ask_programs_to_end(signal)) return;
  const bool kills = interrupted_by_ != 0 || programs_until_ns_ != 0;
  if (interrupted_by_ == 0) end_interrupted(signal);
  if (!kills) return;
  leaving_ = -1;
  kill_ranks();
  hurried_ = true;
}

void Job::end_interrupted(int signal) { give_up(interruption(signal), signal); }

/// Ends the job for a reason that isn't a rank's. Programs under `run` get the signal.
void Job::give_up(const Failure& failure, int signal) {
  interrupted_by_ = signal;
  begin_ending(failure);
  // Built-in ranks end because of the board's abort word; a program may not know of it.
  if (!built_in()) signal_ranks(signal);
}

void Job::stop_all() {
  signal_ranks(SIGSTOP);
  ::kill(::getpid(), SIGSTOP);
}

/// Returns how long a round of the loop may last: news from other nodes, and of stopped ranks, must be recent compared to the
/// deadline.
int Job::tick_ms() const {
  return static_cast<int>(std::clamp<std::uint64_t>(spec_->global->timeout_ns / 8'000'000, 10, kTick_ms));
}

bool Job::others_done() {
  if (!net_->cluster) return true;
  if (living_ > 0) return false;
  if (!said_bye_) {
    said_bye_ = true;
    if (ending_) complete_abort();
    failure_ = boards_.failure();
    net_->cluster->tell_failure(failure_);
    net_->cluster->tell(boards_);
    if (here(0)) read_results(0);
    net_->cluster->tell_bye({.failure = failure_,
                             .code = failure_.cause == Cause::none ? 0 : exit_code(),
                             .trouble = results_.value(kTraceTrouble, std::string())});
  }
  return hurried_ || net_->cluster->settled(boards_);
}

/// Carries pages, failures and addresses between nodes.
void Job::share_news() {
  if (net_->store) net_->store->pump();
  if (net_->cluster) net_->cluster->hear(boards_);
  if (net_->cluster && !built_in() && request_.signal() == 0 && net_->cluster->asked() != 0) interrupt(net_->cluster->asked());
  print_ways();
  const std::uint64_t now = posix::now_ns();
  const bool due = now - last_news_ns_ >= static_cast<std::uint64_t>(ending_ ? kEndingTick_ms : tick_ms()) * kMillisecond / 2;
  if (!due) return;
  last_news_ns_ = now;
  if (!ending_) look_at_ranks(false);
  if (!ending_) judge_silence();
  tell_others();
}

/// Logs why each transport was chosen, if there was a choice, once the ranks have made it.
void Job::print_ways() {
  if (said_choices_ || !net_->choices.complete()) return;
  said_choices_ = true;
  if (net_->choices.trivial()) return;
  for (const std::string& line : net_->choices.lines()) spdlog::info("{}", line);
}

/// Copies the first failure of one node to all nodes.
void Job::spread_failure() {
  if (!boards_.aborted()) return;
  const Failure first = boards_.failure();
  if (first.cause == Cause::none) return;
  boards_.abort(first);
  if (net_->cluster) net_->cluster->tell_failure(first);
}

void Job::tell_others() {
  // The cause goes before the pages: a rank that sees another gone must find the cause.
  spread_failure();
  if (net_->cluster) net_->cluster->tell(boards_);
  else boards_.mirror();
}

void Job::signal_ranks(int signal, int but) {
  for (int rank = 0; rank < static_cast<int>(processes_.size()); ++rank) {
    if (alive(rank) && rank != but) signal_group(process(rank).pid, signal);
  }
}

}  // namespace tsprun::detail::launcher
