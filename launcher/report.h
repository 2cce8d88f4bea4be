// The report for programs (--json): the keys that every command writes, and a JSON document to which commands add their own.
#pragma once

#include "core/board/flight_board.h"
#include "launcher/fault_report.h"
#include "launcher/options.h"
#include "launcher/step_list.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail::launcher {

/// Element of `failure.waiting`: what a rank was waiting for when the job failed.
struct Waiting {
  int rank = 0;
  std::string op;  ///< empty: it had no operation yet, and waited to be connected
  std::uint32_t sequence = 0;
  int waits_for = -1;
};

/// The report of one run of tsprun, and the file that it is written to.
class Report {
 public:
  /// Opens the file, so that a path that can't be written (also a FIFO that nobody reads) is refused before ranks start. Into a
  /// regular file it writes at once that the run isn't over: a tsprun that is killed then leaves neither an earlier run's report
  /// nor an empty file. An empty path: nothing is written. "-": the report goes to stdout, which must have been lent (outputs.h).
  /// Throws Error(refused).
  explicit Report(const std::string& path);
  /// Makes the report of one of several jobs, from which the command takes what belongs into `whole`. It has all keys if `whole`
  /// is wanted, and is written nowhere.
  static Report of_one_job(const Report& whole);

  /// Sets the keys that every command has: command, origin, kernels, failure (null), and with ranks layout, ranks, nodes, dtype
  /// (null), verify, reassociate, transports.
  void begin(const std::string& command, const GlobalOptions& global, bool has_ranks);
  /// Returns true if there is a file to write, or a report that takes from this one and has such a file.
  bool wanted() const { return wanted_; }
  /// Returns the whole document; commands add their keys to it.
  nlohmann::ordered_json& root() { return root_; }
  const nlohmann::ordered_json& root() const { return root_; }
  /// Gives the report a list of steps, which is empty.
  void begin_steps();
  /// Returns the list of steps; null: it has none, or nobody wants it.
  StepList* steps() { return steps_ ? &*steps_ : nullptr; }
  /// Sets the key `failure`. `waiting`: what other ranks were waiting for.
  void set_failure(const Failure& failure, const std::vector<Waiting>& waiting);
  /// Adds what became of each --fault to what earlier attempts of the job reported. `start_ns`: when this attempt began
  /// (posix::now_ns).
  void note_faults(const std::vector<FaultOutcome>& outcomes, std::uint64_t start_ns);
  /// Returns a bit for each fault that has struck, bit i for the i-th --fault.
  std::uint64_t struck_faults() const { return struck_faults_; }
  /// Writes the document. Returns why that failed; empty: it succeeded. Where nodes share the file, as they do if one command
  /// line starts them all, it is node 0's: once another report is in it, other nodes write theirs beside it, as
  /// report.node1.json.
  std::string write();

 private:
  void open();
  bool is_others() const;
  using Take = std::function<void(std::string_view)>;
  void print(const Take& take) const;
  std::string store(const std::function<void(const Take&)>& contents);
  void say_unfinished();

  std::string path_;
  std::optional<int> node_;  // of several machines, the one that this tsprun is
  std::string unfinished_;   // what say_unfinished() wrote
  int ranks_ = 1;
  int nodes_ = 1;
  posix::UniqueFd file_;
  bool wanted_;
  bool regular_ = false;  ///< a regular file, which can be overwritten
  nlohmann::ordered_json root_;
  std::optional<StepList> steps_;
  std::uint64_t struck_faults_ = 0;
};

/// Returns the report's `origin` object, which says which run it is of: version, time, machine and options.
nlohmann::ordered_json origin_json(const GlobalOptions& global);
/// Returns a failure with cause refused and no rank.
Failure refusal(const std::string& detail);
/// Returns a failure as the report's `failure` object. signal, exit_code, op and seq are null where they don't apply. `ranks`,
/// `nodes`: those of the job, from which the failing rank's node follows.
nlohmann::ordered_json failure_json(const Failure& failure, const std::vector<Waiting>& waiting, int ranks = 1, int nodes = 1);
/// Returns the report's `layout` object: degrees by axis.
nlohmann::ordered_json layout_json(const Layout& layout);

}  // namespace tsprun::detail::launcher
