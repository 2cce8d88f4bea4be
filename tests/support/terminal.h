// tsprun on a terminal of its own.
#pragma once

#include <string>
#include <vector>

namespace tsprun::detail::test {

/// All that a program wrote to its terminal, with what was typed, as a terminal shows it; its exit code, or 128 + its signal.
struct Shown {
  std::string text;
  int code = -1;
};

/// Runs tsprun with a terminal of so many columns as stdin, stdout and stderr, until it ends. `kind`: its $TERM. `typed`: what is
/// typed at once, fewer than 4096 bytes; "\x04" at the beginning of a line ends the input.
Shown on_terminal(int columns, const char* kind, std::vector<std::string> arguments, const std::string& typed = {});

}  // namespace tsprun::detail::test
