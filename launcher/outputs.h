// The files that a command writes: no two are one, none is a file that it reads, and "-" is stdout.
#pragma once

#include "transport/posix.h"

#include <CLI/CLI.hpp>

#include <string>

namespace tsprun::launcher {

/// Why what was typed for --json, --trace, --csv, --logits and --output can't be: the same file twice, a file that the command
/// reads, "-" for what can't go to stdout. Empty: nothing is wrong. Nothing is opened or written.
std::string outputs_trouble(const CLI::App& app, const CLI::App& command);

/// True if an output of the command is "-".
bool wants_standard_output(const CLI::App& app, const CLI::App& command);

/// Stdout belongs to the output called "-" alone from now on: what else would be printed there goes to stderr.
void lend_standard_output();
/// Stdout as it was before; -1 if it wasn't lent.
int lent_standard_output();

/// Writes all of it. errno of what went wrong; 0: nothing did.
int write_all(int descriptor, std::string_view text);

/// `--trace -`: ranks write a trace by its path, each its part. They get that of a file in memory, which is copied to stdout.
class TraceToStandardOutput {
 public:
  /// Throws Error(refused) if there is no memory for it.
  TraceToStandardOutput();
  /// Good while this process lives.
  const std::string& path() const { return path_; }
  /// errno of what went wrong; 0: nothing did.
  int copy() const;

 private:
  posix::UniqueFd file_;
  std::string path_;
};

}  // namespace tsprun::launcher
