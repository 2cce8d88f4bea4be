// Words the failure, the chain of waits, and what each rank was doing.
#include "launcher/verdict.h"

#include "launcher/processes.h"
#include "launcher/table.h"
#include "transport/bootstrap/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <map>

namespace tsprun::detail::launcher {

namespace {

/// Largest number of lines of a verdict on a terminal; the JSON report has all.
constexpr std::size_t kMostLines = 32;

std::string who(int rank) { return rank >= 0 ? fmt::format("rank {}", rank) : std::string("a rank"); }

std::string headline(const Failure& failure) {
  const std::string rank = who(failure.rank);
  const std::string where = failure.op.empty() ? "" : fmt::format(" in {} #{}", failure.op, failure.sequence);
  switch (failure.cause) {
    case Cause::killed:
      return fmt::format("{} was killed by signal {} ({}){}", rank, failure.code, signal_name(failure.code), where);
    case Cause::exited:
      if (failure.code == 0) return fmt::format("{} exited (code 0) before the job was done{}", rank, where);
      return fmt::format("{} exited with code {}{}", rank, failure.code, where);
    case Cause::exception: return fmt::format("{} ended by an exception{}", rank, where);
    case Cause::stalled: return fmt::format("{} gave no sign of life until the deadline{}", rank, where);
    case Cause::deadlock:
      return fmt::format("ranks waited for each other in a circle until the deadline; {} is one of them", rank);
    case Cause::mismatch:
      return fmt::format("{} and another rank called different operations, or the same with different arguments; {} was{}", rank,
                         rank, where.empty() ? " outside an operation" : where);
    case Cause::corrupt: return fmt::format("bytes of {} are damaged{}", rank, where);
    case Cause::disconnected:
      if (failure.rank < 0 && !failure.detail.empty()) return failure.detail;
      return fmt::format("the way to {} is cut{}", rank, where);
    case Cause::out_of_memory: return fmt::format("{} ran out of memory{}", rank, where);
    case Cause::refused: return fmt::format("{} refused a request{}", rank, where);
    case Cause::interrupted:
      if (failure.code > 0) return fmt::format("the job was interrupted by {}", signal_name(failure.code));
      return failure.detail.empty() ? "the job was interrupted" : fmt::format("the job was interrupted: {}", failure.detail);
    case Cause::failed: return fmt::format("the program of {} ended the job{}", rank, where);
    case Cause::none: break;
  }
  return "the job failed";
}

/// Returns true if a culprit with this cause has ended and waits for nobody.
bool is_gone(Cause cause) { return cause == Cause::killed || cause == Cause::exited || cause == Cause::exception; }

/// Returns who waits for whom: "ranks 0, 2 wait for 1; rank 1 waits for 3; rank 3 is stopped". Ranks at the end of a chain of
/// waits come last. Empty: nobody waits.
std::string wait_sentence(const Failure& failure, const std::vector<RankRecord>& ranks) {
  std::map<int, std::vector<int>> waiters;  // by whom they wait for
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].waits_for() >= 0) waiters[ranks[i].waits_for()].push_back(static_cast<int>(i));
  }
  // Distance of a rank from the end of its chain of waits; those farthest away come first. A circle has no end.
  const auto distance = [&](int rank) {
    std::size_t steps = 0;
    while (steps <= ranks.size() && rank >= 0 && rank < static_cast<int>(ranks.size())) {
      rank = ranks[static_cast<std::size_t>(rank)].waits_for();
      if (rank >= 0) ++steps;
    }
    return steps;
  };
  std::vector<int> targets;
  for (const auto& each : waiters) targets.push_back(each.first);
  std::stable_sort(targets.begin(), targets.end(), [&](int a, int b) { return distance(a) > distance(b); });
  std::string text;
  for (const int target : targets) {
    const std::vector<int>& who = waiters[target];
    text += fmt::format("{}{} {} {} for {}", text.empty() ? "" : "; ", who.size() == 1 ? "rank" : "ranks", fmt::join(who, ", "),
                        who.size() == 1 ? "waits" : "wait", target);
  }
  if (text.empty() || failure.rank < 0 || static_cast<std::size_t>(failure.rank) >= ranks.size()) return text;
  const RankRecord& culprit = ranks[static_cast<std::size_t>(failure.rank)];
  if (culprit.stopped) text += fmt::format("; rank {} is stopped", failure.rank);
  else if (failure.cause == Cause::stalled) text += fmt::format("; rank {} gave no sign of life", failure.rank);
  return text;
}

/// Returns what a rank did that had no operation and waited for nobody; empty: there is nothing to say.
std::string describe_idle(const RankRecord& record, int rank, const Failure& failure, bool anybody_joined) {
  const bool culprit = rank == failure.rank;
  if (record.stopped || (culprit && failure.cause != Cause::stalled)) return {};
  if (record.life == Life::alive) return fmt::format("rank {}: computing (outside an operation)", rank);
  if (record.life == Life::finished) return fmt::format("rank {} had finished", rank);
  return record.life == Life::unborn && anybody_joined ? fmt::format("rank {} hadn't joined the job yet", rank) : std::string();
}

std::string ago(std::uint64_t then_ns, std::uint64_t now_ns) {
  if (then_ns == 0) return "-";
  return fmt::format("{:.1f} s ago", now_ns > then_ns ? static_cast<double>(now_ns - then_ns) * 1e-9 : 0.0);
}

}  // namespace

Failure interruption(int signal) {
  return {.cause = Cause::interrupted, .code = signal, .detail = fmt::format("tsprun got {}", signal_name(signal))};
}

Failure failure_of_end(const FlightBoard& board, int rank, const RankEnd& end) {
  Failure failure;
  const Failure noted = board.first_error(rank);
  // A rank that notes an error ends by exit or abort(); any other signal came from elsewhere, and later.
  const bool own_words = noted.cause != Cause::none && (end.signal == 0 || end.signal == SIGABRT);
  if (own_words) {
    failure = noted;
  } else {
    failure = end.signal != 0 ? Failure{.cause = Cause::killed, .rank = rank, .code = end.signal}
                              : Failure{.cause = Cause::exited, .rank = rank, .code = end.exit_code};
  }
  // The other ranks throw this text: it must make sense without the rest.
  if (failure.detail.empty()) failure.detail = headline(failure);
  if (!failure.op.empty() || failure.rank != rank) return failure;
  if (const std::optional<Activity> activity = board.activity(rank)) {
    failure.op = name(activity->op);
    failure.sequence = activity->sequence;
  }
  return failure;
}

std::vector<Waiting> waiting_ranks(const Failure& failure, const std::vector<RankRecord>& ranks) {
  std::vector<Waiting> waiting;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::optional<Activity>& activity = ranks[i].activity;
    const int rank = static_cast<int>(i);
    if (ranks[i].waits_for() < 0 || (rank == failure.rank && is_gone(failure.cause))) continue;
    if (activity) waiting.push_back({rank, std::string(name(activity->op)), activity->sequence, activity->waiting_for});
    else waiting.push_back({rank, {}, 0, ranks[i].connecting_to});
  }
  return waiting;
}

std::string print_verdict(const Failure& failure, const std::vector<RankRecord>& ranks, int nodes) {
  std::string first_line = headline(failure);
  const auto world = static_cast<int>(ranks.size());
  const bool known = failure.rank >= 0 && failure.rank < world;
  if (known && is_gone(failure.cause) && failure.op.empty() && ranks[static_cast<std::size_t>(failure.rank)].life == Life::alive)
    first_line += ", outside an operation";
  if (nodes > 1 && known) first_line += fmt::format(", on node {}", node_of(world, nodes, failure.rank));
  std::string text = fmt::format("tsprun: {}\n", first_line);
  const bool says_more = failure.cause != Cause::interrupted && !first_line.starts_with(failure.detail);
  if (says_more) text += fmt::format("tsprun: why: {}\n", failure.detail);
  if (failure.cause == Cause::stalled || failure.cause == Cause::deadlock) {
    if (const std::string waits = wait_sentence(failure, ranks); !waits.empty() && ranks.size() <= kMostLines)
      text += fmt::format("tsprun: {}\n", waits);
  }
  const bool anybody_joined = std::any_of(ranks.begin(), ranks.end(), [](const RankRecord& record) {
    return record.life != Life::unborn || record.connecting_to >= 0;
  });
  std::size_t lines = 0;
  std::size_t left_out = 0;
  const auto add = [&](const std::string& line) {
    if (lines++ < kMostLines) text += fmt::format("tsprun:   {}\n", line);
    else ++left_out;
  };
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const RankRecord& record = ranks[i];
    const int rank = static_cast<int>(i);
    if (record.stopped)
      add(fmt::format("rank {} is stopped (process {} is in state T): it was sent SIGSTOP or is held by a debugger", rank,
                      record.pid));
    if (record.activity) {
      const Activity& activity = *record.activity;
      if (activity.waiting_for >= 0 && !record.stopped && !(rank == failure.rank && is_gone(failure.cause))) {
        add(fmt::format("rank {} waited for rank {} in {} #{} ({}, {} B, stream {})", rank, activity.waiting_for,
                        name(activity.op), activity.sequence, name(activity.dtype), activity.bytes, name(activity.stream)));
      } else if (rank != failure.rank) {
        add(fmt::format("rank {} was in {} #{} ({}, {} B, stream {})", rank, name(activity.op), activity.sequence,
                        name(activity.dtype), activity.bytes, name(activity.stream)));
      }
    } else if (record.waits_for() >= 0 && !(rank == failure.rank && is_gone(failure.cause))) {
      add(fmt::format("rank {} waited for rank {} to be connected", rank, record.waits_for()));
    } else if (const std::string idle = describe_idle(record, rank, failure, anybody_joined); !idle.empty()) {
      add(idle);
    }
    if (record.end.held) {
      add(
          fmt::format("rank {} (process {}) was killed, but the kernel still holds it, for a device that doesn't answer or a "
                      "debugger; tsprun ended without it",
                      rank, record.pid));
    } else if (record.end.by_launcher && record.end.signal == SIGKILL && rank != failure.rank && !record.stopped) {
      add(fmt::format("rank {} didn't end by itself and was killed", rank));
    }
  }
  if (left_out > 0) text += fmt::format("tsprun:   and {} lines more, which the report of --json has\n", left_out);
  return text;
}

std::string life_now(const FlightBoard& board, int rank) {
  const Life life = board.life(rank);
  return life <= Life::alive && board.stopped(rank) ? "stopped" : std::string(name(life));
}

namespace {

std::string mebibytes(std::uint64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

}  // namespace

std::string print_board(const FlightBoard& board, std::uint64_t now_ns, std::size_t columns) {
  using enum Align;
  Table table({"rank", "pid", {"life", left}, {"last sign", left}, "memory", "peak", {"doing", left}});
  std::optional<ProgressRecord> last;  // the furthest behind of those that count steps
  for (int rank = 0; rank < board.ranks(); ++rank) {
    const RankPage& page = board.page(rank);
    std::string life = life_now(board, rank);
    const std::int32_t code = page.code.load(std::memory_order_relaxed);
    if (board.life(rank) == Life::exited) life += fmt::format(" {}", code);
    if (board.life(rank) == Life::killed) life += fmt::format(" {}", code);
    std::string doing;
    for (int stream = 0; stream < kQueues; ++stream) {
      const std::optional<Activity> activity = board.activity(rank, static_cast<Stream>(stream));
      if (activity) doing += (doing.empty() ? "" : "; ") + activity->describe(now_ns);
    }
    if (const int peer = board.connecting_to(rank); peer >= 0) doing = fmt::format("connecting to rank {}", peer);
    else if (doing.empty()) doing = "outside an operation";
    const std::uint32_t pid = board.pid(rank);
    const ProgressRecord progress = board.progress(rank);
    if (progress.step > 0 && (!last || progress.step < last->step)) last = progress;
    table.row({std::to_string(rank), pid != 0 ? std::to_string(pid) : "-", life,
               ago(page.last_sign_ns.load(std::memory_order_relaxed), now_ns), mebibytes(progress.memory),
               mebibytes(progress.memory_peak), doing});
  }
  std::string text;
  if (last) {
    text = fmt::format("step {}", last->step);
    if (last->steps > 0) text += fmt::format(" of {}", last->steps);
    if (last->loss) text += fmt::format(", loss {:.4f}", *last->loss);
    text += '\n';
  }
  text += fmt::format("{}\n", fmt::join(table.lines(columns), "\n"));
  const Failure failure = board.failure();
  if (failure.cause != Cause::none) {
    const std::string failed = fmt::format("failed: {}", headline(failure));
    text += fmt::format("{}\n", fmt::join(wrapped(failed, columns, "  "), "\n"));
  }
  return text;
}

}  // namespace tsprun::detail::launcher
