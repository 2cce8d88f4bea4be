// The part of Job that observes living ranks from outside: finds those that are stopped or have been silent for too long.
#include "launcher/job.h"
#include "launcher/processes.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <sys/wait.h>
#include <utility>

namespace tsprun::detail::launcher {

namespace {

/// Returns how long a rank may be silent. More than the deadline: ranks that wait for it know more, so their failure may come
/// first.
std::uint64_t patience_ns(std::uint64_t timeout_ns) { return timeout_ns + timeout_ns / 8 + 1'000'000'000; }

std::string what_it_does(char state) {
  if (state == 'T') return "it is stopped";
  if (state == 'R') return "it runs, but neither waits nor computes by anything of tsprun's";
  return "it sleeps, but not in a wait of tsprun's";
}

}  // namespace

void Job::follow_stops() {
  // Under `run` a rank is a process group: what stops or continues its guardian must stop or continue the program.
  siginfo_t information{};
  bool any = false;
  while (::waitid(P_ALL, 0, &information, WSTOPPED | WCONTINUED | WNOHANG) == 0 && information.si_pid != 0) {
    any = true;
    const bool stranger = std::find(strangers_.begin(), strangers_.end(), information.si_pid) != strangers_.end();
    if (!built_in() && !stranger) signal_group(information.si_pid, information.si_code == CLD_CONTINUED ? SIGCONT : SIGSTOP);
    information = {};
  }
  // A stopped rank that is ended now isn't stopped any more, but the verdict, also on other nodes, must tell that it was.
  if (any && !ending_) look_at_ranks(true);
}

/// Returns the process that does a rank's work: the one that joined the job for it, else under `run` the program itself.
pid_t Job::worker(int rank) {
  if (const std::uint32_t joined = boards_.page(rank).pid.load(relaxed); joined != 0) return static_cast<pid_t>(joined);
  RankProcess& known = process(rank);
  if (built_in()) return known.pid;
  if (known.program == 0) known.program = only_child(known.pid);
  return known.program != 0 ? known.program : known.pid;
}

/// Marks stopped ranks on the board, and measures how long each rank has been silent. Ranks that wait for a stopped one must know
/// it well before their deadline: it may have been stopped while it waited for them, and what looks like a circle of waits is
/// none. A rank that moved since the last look isn't stopped, unless a signal says that some process is (`all`).
void Job::look_at_ranks(bool all) {
  const std::uint64_t now = posix::now_ns();
  // A rank whose output isn't read may have to wait as long as that lasts.
  const bool unread = stdout_.congested() || stderr_.congested();
  for (int rank = here_.first; rank < here_.first + here_.count; ++rank) {
    if (!alive(rank)) continue;
    RankPage& page = boards_.page(rank);
    RankProcess& looked_at = process(rank);
    const std::uint64_t sign = page.ticks.load(relaxed) + page.last_sign_ns.load(relaxed);
    const bool moved = std::exchange(signs_[static_cast<std::size_t>(rank)], sign) != sign;
    if (moved || unread) looked_at.silence.restart();
    if (moved && !all) {
      page.stopped.store(0, relaxed);
      continue;
    }
    const pid_t at_work = worker(rank);
    const std::optional<posix::ProcessStat> stat = posix::process_stat(at_work);
    if (!stat) continue;
    const bool stopped = stat->state == 'T' || stat->state == 't';
    if (board_.life(rank) <= Life::alive) page.stopped.store(stopped ? 1 : 0, relaxed);
    looked_at.state = stat->state;
    // A user's program may compute, or wait for a person, as long as it likes without tsprun's library.
    if (!built_in() && stat->state != 'T') looked_at.silence.restart();
    else if (!unread)
      looked_at.silence.look({.signs = sign + stat->faults + posix::bytes_moved(at_work), .state = stat->state, .cpu = stat->cpu},
                             now, 2 * static_cast<std::uint64_t>(tick_ms()) * 1'000'000);
  }
}

/// Ends the job if a rank has been silent for longer than any wait may last.
void Job::judge_silence() {
  const std::uint64_t patience = patience_ns(spec_->global->timeout_ns);
  for (int rank = here_.first; rank < here_.first + here_.count; ++rank) {
    const std::uint64_t silent = process(rank).silence.ns();
    if (!alive(rank) || silent < patience) continue;
    Failure failure;
    failure.cause = Cause::stalled;
    failure.rank = rank;
    if (const std::optional<Activity> activity = board_.activity(rank)) {
      failure.op = name(activity->op);
      failure.sequence = activity->sequence;
    }
    failure.detail = fmt::format("rank {} (process {}) gave no sign of life for {:.1f} s (--timeout {:g}): {}", rank,
                                 worker(rank), static_cast<double>(silent) * 1e-9,
                                 static_cast<double>(spec_->global->timeout_ns) * 1e-9, what_it_does(process(rank).state));
    begin_ending(failure);
    return;
  }
}

}  // namespace tsprun::detail::launcher
