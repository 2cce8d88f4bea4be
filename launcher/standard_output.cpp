// Prints through stdio, and remembers the errno of the first write that failed.
#include "launcher/standard_output.h"

#include "transport/cause.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace tsprun::detail::launcher {

namespace {

/// Errno of the first failed write; stdio remembers that a write failed, but not why.
int first_error = 0;

void note(bool arrived) {
  if (!arrived && first_error == 0) first_error = errno != 0 ? errno : EIO;
}

}  // namespace

void open_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    ::open("/dev/null", descriptor == STDERR_FILENO ? O_RDWR : O_RDONLY);
  }
}

void print_text(std::string_view text) { note(std::fwrite(text.data(), 1, text.size(), stdout) == text.size()); }

void show_printed() { note(std::fflush(stdout) == 0); }

bool lost_printed() { return first_error != 0; }

int flush_printed() {
  note(std::fflush(stdout) == 0);
  std::clearerr(stdout);
  return std::exchange(first_error, 0);
}

std::string output_trouble(int errno_value) { return fmt::format("writing to standard output: {}", std::strerror(errno_value)); }

Failure output_failure(int errno_value) {
  return {.cause = Cause::interrupted, .code = errno_value == EPIPE ? SIGPIPE : 0, .detail = output_trouble(errno_value)};
}

int output_lost_code(int errno_value) { return errno_value == EPIPE ? 128 + SIGPIPE : 1; }

}  // namespace tsprun::detail::launcher
