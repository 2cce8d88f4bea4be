// Reads the terminal only while tsprun is in its foreground, and writes to rank 0's pipe.
#include "launcher/terminal_relay.h"

#include "transport/cause.h"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

namespace tsprun::detail::launcher {

TerminalRelay::TerminalRelay() : relaying_(::isatty(STDIN_FILENO) == 1) {
  if (!relaying_) return;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw system_error(Cause::refused, "a pipe for rank 0's stdin", errno);
  read_end_ = posix::UniqueFd(ends[0]);
  write_end_ = posix::UniqueFd(ends[1]);
  ::fcntl(write_end_.get(), F_SETFL, O_NONBLOCK);
}

bool TerminalRelay::wants_input() const {
  return relaying_ && write_end_ && pending_.empty() && ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

void TerminalRelay::pump() {
  std::array<char, 4096> buffer;
  const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count <= 0) {
    write_end_.reset();
    return;
  }
  pending_.append(buffer.data(), static_cast<std::size_t>(count));
  push();
}

void TerminalRelay::push() {
  while (write_end_ && !pending_.empty()) {
    const ssize_t written = ::write(write_end_.get(), pending_.data(), pending_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) return;
    if (written < 0) {
      write_end_.reset();
      return;
    }
    pending_.erase(0, static_cast<std::size_t>(written));
  }
}

}  // namespace tsprun::detail::launcher
