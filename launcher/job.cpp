#include "launcher/job.h"

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
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace tsp::launcher {

namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;
/// How often the abort word is looked at, which rings no bell here, and the terminal's foreground.
constexpr int kTick_ms = 100;
constexpr int kEndingTick_ms = 10;
/// How long after a failure this tsprun waits for those of other nodes.
constexpr std::uint64_t kOthersEnd_ns = 2'000'000'000;
/// How long a failure that a rank began to write may stay half-written before it is taken for dead.
constexpr std::uint64_t kHalfWritten_ns = 50 * kMillisecond;

/// When ranks that don't end by themselves are made to.
struct Patience {
  std::uint64_t term_ns;
  std::uint64_t kill_ns;
};
constexpr Patience kAfterFailure{250 * kMillisecond, 700 * kMillisecond};
/// A user's program may have something to put away when it is interrupted.
constexpr Patience kAfterInterrupt{1000 * kMillisecond, 3000 * kMillisecond};

rlimit raise_open_files() {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit raised = before;
  raised.rlim_cur = raised.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

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
}

Job::~Job() {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    if (processes_[rank].pid > 0 && !records_[rank].end.ended) signal_group(processes_[rank].pid, SIGKILL);
  }
  if (living_ > 0) kill_children({});
}

void Job::start() {
  start_ns_ = posix::now_ns();
  // What a killed rank leaves behind becomes tsprun's child, to be ended too.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const GlobalOptions& global = *spec_->global;
  if (!built_in()) terminal_.emplace();
  StartPlan plan;
  plan.spec = spec_;
  plan.launcher_pidfd = own_pidfd_.get();
  plan.launcher = ::getpid();
  plan.master_address = "127.0.0.1";
  if (net_->cluster) {
    plan.master_address = bootstrap::parse_host_port("--rendezvous", global.rendezvous).host;
    plan.master_port = net_->cluster->master_port();
    plan.store = net_->cluster->store_address();
  } else if (!built_in()) {
    plan.master_port = free_port();
    if (net_->store) plan.store = net_->store->address();
  }
  plan.stdin_for_rank_0 = terminal_ ? terminal_->rank_end() : -1;
  plan.open_files = raise_open_files();
  plan.bind =
      global.bind == Bind::core || (global.bind == Bind::automatic && here_.count * global.threads <= machine::usable_cores());

  processes_.resize(records_.size());
  for (int rank = here_.first; rank < here_.first + here_.count; ++rank) {
    plan.memory = boards_.home(rank);
    plan.place_here = rank - here_.first;
    process(rank) = start_rank(plan, rank);
    records_[static_cast<std::size_t>(rank)].pid = static_cast<std::uint32_t>(process(rank).pid);
    ++living_;
    spdlog::debug("rank {} is process {}", rank, process(rank).pid);
    // A thousand forks take seconds, and who interrupts the job meanwhile wants no more of them.
    handle_signals();
    if (ending_) break;
  }
  if (net_->store) loop_.watch(net_->store->descriptor(), Source::store);
  if (net_->cluster) loop_.watch(net_->cluster->descriptor(), Source::cluster);
  if (terminal_) terminal_->started();

  loop_.watch(signals_.descriptor(), Source::signals);
  for (int rank = here_.first; rank < here_.first + here_.count; ++rank) {
    loop_.watch(process(rank).pidfd.get(), Source::process, rank);
    loop_.watch(process(rank).results.get(), Source::rank_results, rank);
  }
}

void Job::watch() {
  while (living_ > 0 || !others_done()) {
    arrange_flow();
    for (const Event& event : loop_.wait(ending_ ? kEndingTick_ms : tick_ms())) handle(event);
    share_news();
    stdout_.flush();
    stderr_.flush();
    // What ranks find out would reach nobody.
    if (stdout_.error() != 0 && !ending_) give_up(output_failure(stdout_.error()), stdout_.error() == EPIPE ? SIGPIPE : SIGTERM);
    if (!ending_ && boards_.aborted()) begin_ending(std::nullopt);
    if (ending_) end_patiently();
  }
  kill_children({});
  if (ending_) {
    complete_abort();
    note_activities();
    failure_ = boards_.failure();
    if (failure_.cause == Cause::none) failure_ = own_failure_;
  }
  if (net_->cluster) net_->cluster->leave();
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
    case Source::cluster: break;  // seen to in every round
  }
}

void Job::handle_signals() {
  while (const std::optional<int> signal = signals_.next()) {
    switch (*signal) {
      case SIGCHLD: follow_stops(); break;
      case SIGTSTP: stop_all(); break;
      case SIGCONT:
        signal_ranks(SIGCONT);
        // Nobody's patience runs while all are stopped.
        if (ending_) ending_since_ns_ = posix::now_ns();
        break;
      case SIGUSR1: stderr_.append(print_board(board_, posix::now_ns())); break;
      default: interrupt(*signal); break;
    }
  }
}

void Job::interrupt(int signal) {
  if (interrupted_by_ != 0) {
    signal_ranks(SIGKILL);
    sent_kill_ = true;
    return;
  }
  Failure failure;
  failure.cause = Cause::interrupted;
  failure.code = signal;
  failure.detail = fmt::format("tsprun got {}", signal_name(signal));
  give_up(failure, signal);
}

/// Ends the job for a reason that isn't any rank's; programs get the signal.
void Job::give_up(const Failure& failure, int signal) {
  interrupted_by_ = signal;
  begin_ending(failure);
  // Built-in ranks end by the board's word; a program may know nothing of it.
  if (!built_in()) signal_ranks(signal);
}

void Job::stop_all() {
  signal_ranks(SIGSTOP);
  ::kill(::getpid(), SIGSTOP);
}

void Job::follow_stops() {
  // A rank under `run` is a group: what stops or continues its small parent shall do so to the program.
  siginfo_t information{};
  while (::waitid(P_ALL, 0, &information, WSTOPPED | WCONTINUED | WNOHANG) == 0 && information.si_pid != 0) {
    if (!built_in()) signal_group(information.si_pid, information.si_code == CLD_CONTINUED ? SIGCONT : SIGSTOP);
    information = {};
  }
  note_stopped(true);
}

/// Ranks that wait for a stopped one shall know it well before their deadline: it may have been stopped while it waited for them,
/// and what looks like a circle of waits is none. A rank that moved since the last look isn't stopped, unless a signal says that
/// something is (`all`).
void Job::note_stopped(bool all) {
  for (int rank = here_.first; rank < here_.first + here_.count; ++rank) {
    if (!alive(rank) || board_.life(rank) > Life::alive) continue;
    RankPage& page = boards_.page(rank);
    const std::uint64_t sign = page.ticks.load(relaxed) + page.last_sign_ns.load(relaxed);
    const bool moved = std::exchange(signs_[static_cast<std::size_t>(rank)], sign) != sign;
    const std::uint32_t joined = page.pid.load(relaxed);
    const pid_t worker = joined != 0 ? static_cast<pid_t>(joined) : process(rank).pid;
    const bool stopped = (all || !moved) && posix::is_stopped(worker);
    page.stopped.store(stopped ? 1 : 0, relaxed);
  }
}

/// How a rank's process has ended, if it has, without reaping it.
RankEnd Job::look_at_end(int rank) const {
  RankEnd end;
  siginfo_t information{};
  const auto pidfd = static_cast<id_t>(processes_[static_cast<std::size_t>(rank)].pidfd.get());
  if (::waitid(P_PIDFD, pidfd, &information, WEXITED | WNOHANG | WNOWAIT) != 0 || information.si_pid == 0) return end;
  end.ended = true;
  if (information.si_code == CLD_EXITED) end.exit_code = information.si_status;
  else end.signal = information.si_status;
  return end;
}

void Job::rank_ended(int rank) {
  RankProcess& ended = process(rank);
  const RankEnd end = look_at_end(rank);
  if (!end.ended) return;
  // While the dead process isn't reaped its number can't be anyone else's, nor that of its group.
  signal_group(ended.pid, SIGKILL);
  ::waitpid(ended.pid, nullptr, 0);

  RankRecord& record = records_[static_cast<std::size_t>(rank)];
  record.end = end;
  record.end.by_launcher = (sent_term_ && record.end.signal == SIGTERM) || (sent_kill_ && record.end.signal == SIGKILL) ||
                           (record.stopped && ending_ && record.end.signal == SIGKILL);
  --living_;
  loop_.ignore(ended.pidfd.get());
  ended.pidfd.reset();
  judge(rank, record.end);

  if (record.end.signal != 0 && !built_in()) {
    std::vector<pid_t> spare;
    for (int other = 0; other < spec_->global->ranks; ++other) {
      if (alive(other)) spare.push_back(process(other).pid);
    }
    kill_children(spare);
  }
}

void Job::judge(int rank, const RankEnd& end) {
  if (end.failed()) {
    if (first_failing_ < 0 && !end.by_launcher && interrupted_by_ == 0) first_failing_ = rank;
    boards_.mirror();
    begin_ending(failure_of_end(board_, rank, end));
  }
  spread_failure();
  // The abort word first: who sees a peer gone shall find the full story.
  RankPage& page = boards_.page(rank);
  if (!end.failed() && board_.life(rank) == Life::finished) return;
  page.code.store(end.signal != 0 ? end.signal : end.exit_code, std::memory_order_relaxed);
  page.life.store(static_cast<std::uint32_t>(end.signal != 0 ? Life::killed : Life::exited), std::memory_order_release);
  // Those who wait for it look at once instead of at the end of their sleep.
  tell_others();
  boards_.ring_all();
}

void Job::begin_ending(const std::optional<Failure>& own) {
  if (ending_) return;
  ending_ = true;
  ending_since_ns_ = posix::now_ns();
  boards_.mirror();
  note_activities();
  name_earlier_death();
  spread_failure();
  if (own) {
    own_failure_ = *own;
    boards_.abort(*own);
  }
  const Failure first = boards_.failure();
  for (int rank = 0; rank < spec_->global->ranks; ++rank) {
    RankRecord& record = records_[static_cast<std::size_t>(rank)];
    record.life = board_.life(rank);
    const std::uint32_t worker = board_.pid(rank) != 0 ? board_.pid(rank) : record.pid;
    record.stopped = here(rank) ? alive(rank) && posix::is_stopped(static_cast<pid_t>(worker)) : board_.stopped(rank);
    if (!record.stopped) continue;
    record.pid = worker;
    if (!here(rank)) continue;
    // A stopped process hears nothing but SIGKILL.
    if (first.cause == Cause::stalled) signal_group(process(rank).pid, SIGKILL);
  }
}

/// Ranks can only say that another one gave no sign of life, or that its way is cut. If one has died, and nobody told them
/// because tsprun was itself stopped meanwhile, or late, its death is the cause. Nobody has been ended by tsprun yet, and who
/// ends with the job notes that and exits: a signal without a note came from elsewhere, and so did the end of the rank that is
/// blamed.
void Job::name_earlier_death() {
  const Failure first = boards_.failure();
  if (first.cause != Cause::stalled && first.cause != Cause::deadlock && first.cause != Cause::disconnected) return;
  const auto died = [&](int rank) -> std::optional<RankEnd> {
    if (!here(rank) || board_.first_error(rank).cause != Cause::none) return std::nullopt;
    const RankEnd& known = records_[static_cast<std::size_t>(rank)].end;
    const RankEnd end = known.ended ? known : look_at_end(rank);
    const bool cut_short = rank == first.rank && end.ended && board_.life(rank) != Life::finished;
    return end.signal != 0 || cut_short ? std::optional(end) : std::nullopt;
  };
  std::vector<int> suspects = {first.rank};
  for (int rank = here_.first; rank < here_.first + here_.count; ++rank) suspects.push_back(rank);
  for (const int rank : suspects) {
    const std::optional<RankEnd> end = died(rank);
    if (!end) continue;
    boards_.correct(failure_of_end(board_, rank, *end));
    return;
  }
}

void Job::end_patiently() {
  const std::uint64_t waited = posix::now_ns() - ending_since_ns_;
  const Patience patience = interrupted_by_ != 0 && !built_in() ? kAfterInterrupt : kAfterFailure;
  if (waited > kHalfWritten_ns) complete_abort();
  if (waited > patience.term_ns && !sent_term_) {
    sent_term_ = true;
    signal_ranks(SIGTERM);
  }
  if (waited > patience.kill_ns && !sent_kill_) {
    sent_kill_ = true;
    signal_ranks(SIGKILL);
  }
}

void Job::complete_abort() {
  Failure first = boards_.failure();
  if (first.cause != Cause::none) {
    boards_.abort(first);
    return;
  }
  if (own_failure_.cause == Cause::none) {
    own_failure_.cause = Cause::exited;
    own_failure_.detail = "a rank began to report a failure and ended before it was done";
  }
  // Its writer is dead or hangs: the word is put back, so that the usual way is free again.
  boards_.clear_half_written();
  boards_.abort(own_failure_);
}

/// How long a round may last: news of other nodes, and of stopped ranks, shall be fresh against the deadline.
int Job::tick_ms() const {
  return static_cast<int>(std::clamp<std::uint64_t>(spec_->global->timeout_ns / 8'000'000, 10, kTick_ms));
}

bool Job::others_done() {
  if (!net_->cluster) return true;
  if (living_ > 0) return false;
  if (!said_bye_) {
    said_bye_ = true;
    if (ending_) complete_abort();
    net_->cluster->tell_failure(boards_.failure());
    net_->cluster->tell(boards_);
    net_->cluster->tell_bye();
  }
  // After a failure the others are given a moment to end; they were told.
  return net_->cluster->all_done() || (ending_ && posix::now_ns() - ending_since_ns_ > kOthersEnd_ns);
}

/// Carries pages, failures and addresses between nodes.
void Job::share_news() {
  if (net_->store) net_->store->pump();
  if (net_->cluster) net_->cluster->hear(boards_);
  print_ways();
  const std::uint64_t now = posix::now_ns();
  const bool due = now - last_news_ns_ >= static_cast<std::uint64_t>(ending_ ? kEndingTick_ms : tick_ms()) * kMillisecond / 2;
  if (!due) return;
  last_news_ns_ = now;
  if (!ending_) note_stopped(false);
  tell_others();
}

/// Why each transport was chosen, where there was a choice, once the ranks have made it.
void Job::print_ways() {
  if (said_ways_ || !net_->ways.complete()) return;
  said_ways_ = true;
  if (net_->ways.trivial()) return;
  for (const std::string& line : net_->ways.lines()) spdlog::info("{}", line);
}

/// What one node says first, all shall know.
void Job::spread_failure() {
  if (!boards_.aborted()) return;
  const Failure first = boards_.failure();
  if (first.cause == Cause::none) return;
  boards_.abort(first);
  if (net_->cluster) net_->cluster->tell_failure(first);
}

void Job::tell_others() {
  // First why, then who: a rank that sees another gone shall find the cause.
  spread_failure();
  if (net_->cluster) net_->cluster->tell(boards_);
  else boards_.mirror();
}

void Job::note_activities() {
  for (int rank = 0; rank < spec_->global->ranks; ++rank) {
    std::optional<Activity>& known = records_[static_cast<std::size_t>(rank)].activity;
    std::optional<Activity> now = board_.activity(rank);
    // The later look counts, unless it no longer sees a wait that the earlier one saw.
    if (now && (now->waiting_for >= 0 || !known)) known = now;
    int& connecting_to = records_[static_cast<std::size_t>(rank)].connecting_to;
    if (connecting_to < 0) connecting_to = board_.connecting_to(rank);
  }
}

void Job::signal_ranks(int signal) {
  for (int rank = 0; rank < static_cast<int>(processes_.size()); ++rank) {
    if (alive(rank)) signal_group(process(rank).pid, signal);
  }
}

int Job::exit_code() const {
  if (failure_.cause == Cause::none) return stdout_.error() != 0 ? output_lost_code(stdout_.error()) : 0;
  if (failure_.cause == Cause::interrupted) return failure_.code > 0 ? 128 + failure_.code : 1;
  if (built_in()) return 1;
  const auto culprit = static_cast<std::size_t>(failure_.rank);
  if (failure_.rank >= 0 && culprit < records_.size() && records_[culprit].end.failed() && !records_[culprit].end.by_launcher) {
    return records_[culprit].end.code();
  }
  if (first_failing_ >= 0) return records_[static_cast<std::size_t>(first_failing_)].end.code();
  // Of a rank under another tsprun only the failure is known.
  if (failure_.cause == Cause::killed && failure_.code > 0) return 128 + failure_.code;
  return failure_.cause == Cause::exited && failure_.code > 0 ? failure_.code : 1;
}

}  // namespace tsp::launcher
