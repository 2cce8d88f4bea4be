// Checks the files that a command writes: they must be different files, and none that the command reads. "-" is stdout.
#pragma once

#include "launcher/option_table.h"
#include "transport/posix.h"

#include <string>

namespace tsprun::detail::launcher {

/// Returns why the files that were typed for outputs (Trait::writes) can't be written: the same file twice, a file that the
/// command reads, or "-" for a file that can't go to stdout. Empty: nothing is wrong. Opens and writes nothing.
std::string outputs_trouble(const OptionTable& global, const OptionTable& command);

/// Returns true if an output of the command is "-".
bool wants_standard_output(const OptionTable& global, const OptionTable& command);

/// Reserves stdout for the output called "-": from now on everything else that is printed on stdout goes to stderr. Throws
/// Error(refused).
void lend_standard_output();
/// Returns a descriptor of the real stdout; -1 if it wasn't lent.
int lent_standard_output();

/// Writes a table to the file of an option, or to the lent stdout if it is "-". Returns why that failed, beginning with the
/// option; empty: it succeeded.
std::string write_csv(const std::string& option, const std::string& path, const std::string& table);

/// Implements `--trace -`. Ranks write a trace by its path, each its own part; they get the path of a file in memory, which is
/// then copied to stdout.
class TraceToStandardOutput {
 public:
  /// Makes the file in memory. Throws Error(refused) if there is no memory for it.
  TraceToStandardOutput();
  /// Returns the path for the ranks, valid while this object and process live.
  const std::string& path() const { return path_; }
  /// Copies the trace to the lent stdout. Returns the errno of a failure; 0: none.
  int copy() const;

 private:
  posix::UniqueFd file_;
  std::string path_;
};

}  // namespace tsprun::detail::launcher
