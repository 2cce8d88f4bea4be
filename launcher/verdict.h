// The last words on a failed job: who failed, how, in which operation, why, and what everyone else was waiting for.
#pragma once

#include "core/board/flight_board.h"
#include "launcher/report.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::launcher {

/// How a rank's process ended.
struct RankEnd {
  bool ended = false;
  int exit_code = 0;
  int signal = 0;            ///< 0: it exited
  bool by_launcher = false;  ///< tsprun's own signal ended it

  bool failed() const { return ended && (signal != 0 || exit_code != 0); }
  /// As a shell counts: the exit code, or 128 + signal.
  int code() const { return signal != 0 ? 128 + signal : exit_code; }
};

/// What is known of a rank when the job is over.
struct RankRecord {
  RankEnd end;
  std::uint64_t waited_for_core_ns = 0;  ///< of its process when it ended; 0: unknown, or it hasn't ended here
  std::optional<Activity> activity;      ///< when the job failed
  int connecting_to = -1;                ///< for whom it waited, still without an operation, while ranks connected; -1: nobody
  Life life = Life::unborn;              ///< when the job failed
  bool stopped = false;                  ///< its process was stopped (SIGSTOP) when the job failed
  std::uint32_t pid = 0;

  /// Whom it waited for, -1: nobody. Who is stopped waits for nobody.
  int waits_for() const {
    if (stopped) return -1;
    return activity ? activity->waiting_for : connecting_to;
  }
};

/// The failure that a rank's own end is, read off its board page: killed or exited, or what the rank noted as its first error.
Failure failure_of_end(const FlightBoard& board, int rank, const RankEnd& end);

/// The ranks that waited for another one; without those that are stopped, and without the culprit if it is gone: they wait for
/// nobody.
std::vector<Waiting> waiting_ranks(const Failure& failure, const std::vector<RankRecord>& ranks, int first_rank);

/// Lines for people, each ending in a newline. With several nodes the culprit's is named; then `ranks` must be the world.
std::string print_verdict(const Failure& failure, const std::vector<RankRecord>& ranks, int first_rank, int nodes = 1);

/// The board of all ranks, a line each: pid, life, operation, whom it waits for and how long, last sign of life.
std::string print_board(const FlightBoard& board, std::uint64_t now_ns);

/// Life of a rank for those who look at a running job: "stopped" for one whose process is.
std::string life_now(const FlightBoard& board, int rank);

}  // namespace tsprun::launcher
