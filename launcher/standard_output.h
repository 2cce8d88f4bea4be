// Prints what commands themselves write on tsprun's stdout, and tells whether it got there. Ranks' lines and results go through
// Output.
#pragma once

#include "core/board/flight_board.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tsprun::detail::launcher {

/// Opens those of descriptors 0 to 2 with which tsprun was started closed, so that none of them becomes a pipe or memory of ours.
/// Input is then empty, stderr is swallowed, and writing to stdout fails as it would have.
void open_standard_streams();

/// Puts text into stdout's buffer.
void print_text(std::string_view text);
/// Puts formatted text into stdout's buffer.
template <class... Arguments>
void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  print_text(fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// Puts lines into stdout's buffer.
inline void print_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) print("{}\n", line);
}

/// Writes what is buffered, for a reader who shouldn't wait for what comes next. flush_printed() tells if that failed.
void show_printed();
/// Returns whether a write has failed since flush_printed() was called last, so that nothing more need be printed.
bool lost_printed();
/// Writes what is buffered. Returns the errno of the first write that failed since the last call; 0: everything has arrived.
int flush_printed();

/// Returns the message for an errno: "writing to standard output: No space left on device".
std::string output_trouble(int errno_value);
/// Returns the failure for the report: the job was interrupted, by SIGPIPE if the reader has gone (EPIPE).
Failure output_failure(int errno_value);
/// Returns the exit code of a command that succeeded but lost its output: 128 + SIGPIPE if the reader has gone (EPIPE), else 1.
int output_lost_code(int errno_value);

}  // namespace tsprun::detail::launcher
