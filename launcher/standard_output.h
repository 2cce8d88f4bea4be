// What commands themselves print on tsprun's stdout, and whether it got there. Ranks' lines and results go through Output.
#pragma once

#include "core/board/flight_board.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace tsprun::launcher {

/// Descriptors 0 to 2 must not become pipes or memory of ours, should tsprun be started with them closed: they are opened so that
/// input is empty, stderr is swallowed, and writing to stdout fails as it would have.
void open_standard_streams();

/// Puts text into stdout's buffer.
void print_text(std::string_view text);
template <class... Arguments>
void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  print_text(fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// Writes what is buffered. The errno of the first write that failed since the last call, 0: all has arrived.
int flush_printed();

/// "writing to standard output: No space left on device"
std::string output_trouble(int errno_value);
/// The same for a report: the job was ended from outside, by SIGPIPE where the reader has gone (EPIPE).
Failure output_failure(int errno_value);
/// The exit code that a lost output makes of a success: as if by SIGPIPE where the reader has gone (EPIPE), else 1.
int output_lost_code(int errno_value);

}  // namespace tsprun::launcher
