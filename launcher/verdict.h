// Words the verdict on a failed job: which rank failed, how, in which operation, why, and what every other rank was waiting for.
// Also prints the flight board.
#pragma once

#include "core/board/flight_board.h"
#include "launcher/report.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// The end of a rank's process.
struct RankEnd {
  bool ended = false;
  int exit_code = 0;
  int signal = 0;            ///< 0: it exited
  bool by_launcher = false;  ///< a signal that tsprun sent ended it
  bool held = false;         ///< it was killed, but the kernel still holds it, so it hasn't really ended

  /// Returns true if the process ended by a signal or with a code other than 0.
  bool failed() const { return ended && (signal != 0 || exit_code != 0); }
  /// Returns the exit code as shells count it: the process's own, or 128 + signal.
  int code() const { return signal != 0 ? 128 + signal : exit_code; }
};

/// Everything known of a rank when the job is over.
struct RankRecord {
  RankEnd end;
  std::uint64_t waited_for_core_ns = 0;  ///< time that its process was ready, had something to do and no core; 0: unknown, or it
                                         ///< didn't end here
  std::optional<Activity> activity;      ///< its operation when the job failed
  int connecting_to = -1;                ///< rank that it waited for while ranks connected, before any operation; -1: none
  Life life = Life::unborn;              ///< when the job failed
  bool stopped = false;                  ///< its process was stopped (SIGSTOP) when the job failed
  std::uint32_t pid = 0;

  /// Returns the rank that it waited for; -1: none. A stopped rank waits for none.
  int waits_for() const {
    if (stopped) return -1;
    return activity ? activity->waiting_for : connecting_to;
  }
};

/// Returns the failure that the end of a rank's process means: the first error that the rank noted on its board page, or else
/// that it was killed or exited.
Failure failure_of_end(const FlightBoard& board, int rank, const RankEnd& end);

/// Returns the failure of a job that tsprun ends because it got a signal.
Failure interruption(int signal);

/// Returns the ranks that waited for another one, and for which. Left out are stopped ranks, and the culprit if its process is
/// gone: they wait for none.
std::vector<Waiting> waiting_ranks(const Failure& failure, const std::vector<RankRecord>& ranks);

/// Returns the verdict as lines to print, each ending in a newline. With several nodes it names the culprit's node; `ranks` must
/// then hold all ranks of the world.
std::string print_verdict(const Failure& failure, const std::vector<RankRecord>& ranks, int nodes = 1);

/// Returns the board as a table with a line per rank: pid, life, last sign of life, and its operations with the rank that each
/// waits for and how long. If rows would be longer than `columns`, they go on below (Table::lines()).
std::string print_board(const FlightBoard& board, std::uint64_t now_ns, std::size_t columns = static_cast<std::size_t>(-1));

/// Returns the state of a rank in a running job, as a word: "stopped" if its process is stopped.
std::string life_now(const FlightBoard& board, int rank);

}  // namespace tsprun::detail::launcher
