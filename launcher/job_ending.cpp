// The part of Job that ends it: blames a rank, ends the others, and chooses the exit code.
#include "launcher/job.h"
#include "launcher/processes.h"
#include "launcher/standard_output.h"
#include "transport/cause.h"

#include <csignal>
#include <cstdint>
#include <optional>
#include <sys/wait.h>
#include <vector>

namespace tsprun::detail::launcher {

namespace {

/// Time that a failure which a rank began to write may stay incomplete before its writer is taken for dead.
constexpr std::uint64_t kHalfWritten_ns = 50'000'000;

/// Times after the job began to end at which ranks that still run get SIGTERM and SIGKILL.
struct GracePeriods {
  std::uint64_t term_ns;
  std::uint64_t kill_ns;
};
constexpr GracePeriods kAfterFailure{250'000'000, 700'000'000};
/// Built-in ranks ignore SIGTERM; one that doesn't react to the board's abort word gets SIGKILL.
constexpr GracePeriods kBuiltIn{250'000'000, 250'000'000};
/// Further time for a rank that left the job too early, whose process may be about to end with an exit code that explains why: an
/// interpreter takes its time to end.
constexpr std::uint64_t kLeaving_ns = 3'000'000'000;

/// Longest time that no rank ends after all got SIGKILL. What then still runs sleeps in the kernel, where no signal ends it: of a
/// rank over RDMA, for instance, the kernel waits for messages that a dead port will never send.
constexpr std::uint64_t kHeldByKernel_ns = 5'000'000'000;

}  // namespace

/// Returns how a rank's process has ended, if it has, without reaping it.
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
  // Until the dead process is reaped, no other process can get its number, nor its group's.
  signal_group(ended.pid, SIGKILL);
  RankRecord& record = records_[static_cast<std::size_t>(rank)];
  const std::uint64_t waited_ns = waited_for_core_ns(ended.pid);
  record.waited_for_core_ns = waited_ns - std::min(waited_ns, boards_.page(rank).yielded_ns.load(std::memory_order_relaxed));
  ::waitpid(ended.pid, nullptr, 0);

  record.end = end;
  record.end.by_launcher = (sent_term_ && record.end.signal == SIGTERM) || (sent_kill_ && record.end.signal == SIGKILL) ||
                           (record.stopped && ending_ && record.end.signal == SIGKILL);
  --living_;
  killed_ns_ = posix::now_ns();
  loop_.ignore(ended.pidfd.get());
  ended.pidfd.reset();
  if (end.failed() && !ending_ && !lets_ranks_end()) hear_own_signals(end);
  judge(rank, record.end);
}

/// Returns the failure of a rank's process, with what the kernel says about out-of-memory kills.
Failure Job::failure_of(int rank, const RankEnd& end) const {
  Failure failure = failure_of_end(board_, rank, end);
  if (failure.cause != Cause::killed || failure.code != SIGKILL) return failure;
  switch (machine::shortage(killed_before_, machine::out_of_memory_kills())) {
    case machine::Shortage::cgroup:
      failure.detail +=
          "; the kernel's out-of-memory killer has struck in this job's cgroup: its memory limit is too small for the job";
      break;
    case machine::Shortage::either:
      failure.detail +=
          "; the kernel's out-of-memory killer has struck in this job's cgroup: its memory limit is too small for the job, or "
          "the "
          "machine has run out of memory";
      break;
    case machine::Shortage::machine:
      failure.detail +=
          "; the kernel's out-of-memory killer has struck on this machine meanwhile: the machine, or a cgroup around this job's, "
          "may have run out of memory";
      break;
    case machine::Shortage::none: break;
  }
  return failure;
}

void Job::judge(int rank, const RankEnd& end) {
  if (end.failed()) {
    if (first_failing_ < 0 && !end.by_launcher && interrupted_by_ == 0) first_failing_ = rank;
    boards_.mirror();
    // Others could only say that it had left.
    if (rank == leaving_ && !end.by_launcher) boards_.correct(failure_of(rank, end));
    begin_ending(failure_of(rank, end));
  }
  if (rank == leaving_) leaving_ = -1;
  spread_failure();
  // The abort word goes first: a rank that sees a peer gone must find the full story.
  RankPage& page = boards_.page(rank);
  if (end.failed() || board_.life(rank) != Life::finished) {
    page.code.store(end.signal != 0 ? end.signal : end.exit_code, std::memory_order_relaxed);
    page.life.store(static_cast<std::uint32_t>(end.signal != 0 ? Life::killed : Life::exited));
  }
  page.over.store(1, std::memory_order_release);
  news_ = true;
}

/// Ends the job, if it doesn't end already. `own`: the failure that this tsprun found; null: it is on the boards.
void Job::begin_ending(const std::optional<Failure>& own) {
  if (ending_) return;
  ending_ = true;
  ending_since_ns_ = posix::now_ns();
  boards_.mirror();
  note_activities();
  if (programs_until_ns_ != 0) {
    // However a program ends that was asked to.
    interrupted_by_ = request_.signal();
    own_failure_ = interruption(interrupted_by_);
    boards_.correct(own_failure_);
  } else {
    name_earlier_death();
  }
  spread_failure();
  if (own && programs_until_ns_ == 0) {
    own_failure_ = *own;
    boards_.abort(*own);
  }
  const Failure first = boards_.failure();
  const bool has_left = first.cause == Cause::exited && first.code == 0 && first.rank >= 0 && alive(first.rank);
  if (has_left && board_.life(first.rank) == Life::finished) leaving_ = first.rank;
  for (int rank = 0; rank < spec_->global->ranks; ++rank) {
    RankRecord& record = records_[static_cast<std::size_t>(rank)];
    record.life = board_.life(rank);
    record.stopped = here(rank) ? alive(rank) && posix::is_stopped(worker(rank)) : board_.stopped(rank);
    if (!record.stopped) continue;
    record.pid = here(rank) ? static_cast<std::uint32_t>(worker(rank)) : board_.pid(rank);
    if (!here(rank)) continue;
    // A stopped process reacts to no signal but SIGKILL.
    if (first.cause == Cause::stalled) signal_group(process(rank).pid, SIGKILL);
  }
}

/// Replaces a failure that ranks could only describe as a stall, a deadlock or a broken connection, if tsprun knows the cause. If
/// the whole node of the blamed rank is silent, or acknowledges nothing, the way to that node is cut: the rank may be well. If a
/// rank has died, and nobody told the others because tsprun was itself stopped meanwhile or late, its death is the cause. tsprun
/// hasn't ended any rank yet, and a rank that ends with the job notes an error and exits. So a signal without a noted error came
/// from elsewhere, and so did the end of the rank that is blamed.
void Job::name_earlier_death() {
  const Failure first = boards_.failure();
  if (first.cause != Cause::stalled && first.cause != Cause::deadlock && first.cause != Cause::disconnected) return;
  if (net_->cluster) {
    // A circle of waits that leads over another node may name any of its ranks.
    const int blamed = first.cause == Cause::deadlock ? -1 : first.rank;
    if (const std::optional<Failure> cut = net_->cluster->cut_off(blamed)) return boards_.correct(*cut);
  }
  const auto died = [&](int rank) -> std::optional<RankEnd> {
    if (!here(rank)) return std::nullopt;
    const RankEnd& known = records_[static_cast<std::size_t>(rank)].end;
    const RankEnd end = known.ended ? known : look_at_end(rank);
    if (!end.ended) return std::nullopt;
    // Copies pages after the end was seen: the rank may have noted why it ended since they were last copied.
    boards_.mirror();
    if (board_.first_error(rank).cause != Cause::none) return std::nullopt;
    const bool cut_short = rank == first.rank && board_.life(rank) != Life::finished;
    return end.signal != 0 || cut_short ? std::optional(end) : std::nullopt;
  };
  std::vector<int> suspects = {first.rank};
  for (int rank = here_.first; rank < here_.first + here_.count; ++rank) suspects.push_back(rank);
  for (const int rank : suspects) {
    const std::optional<RankEnd> end = died(rank);
    if (!end) continue;
    boards_.correct(failure_of(rank, *end));
    return;
  }
}

void Job::end_patiently() {
  const std::uint64_t now = posix::now_ns();
  if (now - ending_since_ns_ > kHalfWritten_ns) complete_abort();
  // Programs that were asked to end have their time, though others have ended.
  const std::uint64_t waited = now - std::min(now, std::max(ending_since_ns_, programs_until_ns_));
  GracePeriods grace = built_in() ? kBuiltIn : kAfterFailure;
  if (interrupted_by_ == 0) grace.kill_ns = std::max(grace.kill_ns, spec_->patience.after_failure_ns);
  if (waited > grace.term_ns && !sent_term_ && !built_in()) {
    sent_term_ = true;
    signal_ranks(SIGTERM, leaving_);
  }
  if (waited > grace.kill_ns && !sent_kill_) kill_ranks();
  if (waited > grace.kill_ns + kLeaving_ns && leaving_ >= 0) {
    leaving_ = -1;
    kill_ranks();
  }
  if (sent_kill_ && posix::now_ns() - killed_ns_ > kHeldByKernel_ns) leave_held_ranks();
}

void Job::kill_ranks() {
  sent_kill_ = true;
  killed_ns_ = posix::now_ns();
  signal_ranks(SIGKILL, leaving_);
}

/// Counts the ranks that the kernel holds as ended, so that the job ends without them.
void Job::leave_held_ranks() {
  for (int rank = here_.first; rank < here_.first + here_.count; ++rank) {
    if (!alive(rank)) continue;
    records_[static_cast<std::size_t>(rank)].end = {.ended = true, .signal = SIGKILL, .by_launcher = true, .held = true};
    --living_;
    loop_.ignore(process(rank).pidfd.get());
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
  // The writer is dead or hangs. The word is reset, so that a failure can be written as usual.
  boards_.clear_half_written();
  boards_.abort(own_failure_);
}

void Job::note_activities() {
  for (int rank = 0; rank < spec_->global->ranks; ++rank) {
    std::optional<Activity>& known = records_[static_cast<std::size_t>(rank)].activity;
    std::optional<Activity> now = board_.activity(rank);
    // The later reading counts, unless it no longer shows a wait that the earlier one showed.
    if (now && (now->waiting_for >= 0 || !known)) known = now;
    int& connecting_to = records_[static_cast<std::size_t>(rank)].connecting_to;
    if (connecting_to < 0) connecting_to = board_.connecting_to(rank);
  }
}

int Job::exit_code() const {
  if (failure_.cause == Cause::none) return stdout_.error() != 0 ? output_lost_code(stdout_.error()) : 0;
  if (failure_.cause == Cause::interrupted) return failure_.code > 0 ? 128 + failure_.code : 1;
  if (built_in()) return 1;
  // All nodes end with the exit code of the node of the failing rank.
  if (net_->cluster && net_->cluster->ending() && net_->cluster->ending()->code != 0) return net_->cluster->ending()->code;
  const auto culprit = static_cast<std::size_t>(failure_.rank);
  if (failure_.rank >= 0 && culprit < records_.size() && records_[culprit].end.failed() && !records_[culprit].end.by_launcher) {
    return records_[culprit].end.code();
  }
  if (first_failing_ >= 0) return records_[static_cast<std::size_t>(first_failing_)].end.code();
  // For ranks of other nodes only the failure record is available.
  if (failure_.cause == Cause::killed && failure_.code > 0) return 128 + failure_.code;
  return failure_.cause == Cause::exited && failure_.code > 0 ? failure_.code : 1;
}

}  // namespace tsprun::detail::launcher
