// A pseudo-terminal for one program.
#include "tests/support/terminal.h"

#include "tests/support/process.h"
#include "transport/posix.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tsprun::detail::test {

Shown on_terminal(int columns, const char* kind, std::vector<std::string> arguments, const std::string& typed) {
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = 24;
  arguments.insert(arguments.begin(), tsprun_path());
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  int near = -1;
  const pid_t child = ::forkpty(&near, nullptr, nullptr, &size);
  if (child == 0) {
    ::setenv("TERM", kind, 1);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  const posix::UniqueFd terminal(near);
  EXPECT_EQ(::write(terminal.get(), typed.data(), typed.size()), static_cast<ssize_t>(typed.size()));
  Shown shown;
  std::array<char, 4096> buffer;
  // The terminal's end is an error, EIO.
  for (ssize_t count = 0; (count = ::read(terminal.get(), buffer.data(), buffer.size())) > 0 || (count < 0 && errno == EINTR);) {
    if (count > 0) shown.text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  shown.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return shown;
}

}  // namespace tsprun::detail::test
