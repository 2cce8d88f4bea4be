// The report for machines (--json): keys that every command writes, and room for a command's own.
#pragma once

#include "core/board/flight_board.h"
#include "launcher/fault_report.h"
#include "launcher/options.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace tsprun::launcher {

/// One line of `failure.waiting`: what another rank was waiting for when the job failed.
struct Waiting {
  int rank = 0;
  std::string op;  ///< empty: none yet, it waited to be connected
  std::uint32_t sequence = 0;
  int waits_for = -1;
};

class Report {
 public:
  /// Opens the file at once, so that a path that can't be written (a FIFO that nobody reads, too) is refused before ranks start,
  /// and writes that the run isn't over: a tsprun that is killed shall leave neither an earlier run's report as its own nor an
  /// empty file. An empty path: nothing is written; "-": to stdout, which was lent (outputs.h). Throws Error(refused).
  explicit Report(const std::string& path);

  /// command, layout, ranks, nodes, dtype (null), kernels, transports, failure (null).
  void begin(const std::string& command, const GlobalOptions& global, bool has_ranks);
  /// Somebody will read it: there is a file.
  bool wanted() const { return static_cast<bool>(file_); }
  /// The whole document; commands add keys to it.
  nlohmann::ordered_json& root() { return root_; }
  const nlohmann::ordered_json& root() const { return root_; }
  void set_failure(const Failure& failure, const std::vector<Waiting>& waiting);
  /// What became of --fault, added to that of earlier attempts; `start_ns`: when this one began.
  void note_faults(const std::vector<FaultOutcome>& outcomes, std::uint64_t start_ns);
  /// A bit for each that struck.
  std::uint64_t struck_faults() const { return struck_faults_; }
  /// Writes the document. Why the file system won't take it; empty: it did.
  std::string write();

 private:
  std::string store(const std::string& text);
  void say_unfinished();

  std::string path_;
  int ranks_ = 1;
  int nodes_ = 1;
  posix::UniqueFd file_;
  bool regular_ = false;  ///< what is written can be written over
  nlohmann::ordered_json root_;
  std::uint64_t struck_faults_ = 0;
};

/// What was asked for and can't be, as a failure of no rank.
Failure refusal(const std::string& detail);
/// `failure` as page-one JSON; signal, op and seq are null where they say nothing.
nlohmann::ordered_json failure_json(const Failure& failure, const std::vector<Waiting>& waiting, int ranks = 1, int nodes = 1);

}  // namespace tsprun::launcher
