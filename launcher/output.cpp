// Queues bytes for a descriptor that may be slow, and cuts ranks' output into lines.
#include "launcher/output.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace tsprun::detail::launcher {

namespace {
/// A pipe that polls writable takes this much without blocking (PIPE_BUF).
constexpr std::size_t kPipePiece = 4096;
/// A line longer than this is passed on in pieces.
constexpr std::size_t kLongestLine = std::size_t{1} << 24;
constexpr std::size_t kReadSize = std::size_t{1} << 16;
/// Moves to the line's beginning and clears it.
constexpr std::string_view kEraseLine = "\r\033[K";
/// Columns of a terminal that doesn't say how wide it is.
constexpr std::size_t kUsualColumns = 80;

/// Returns a description of its own of a terminal, whose writes don't block; empty if it can't be opened. A terminal polls
/// writable when it has room for one byte, and a write that finds less room than it needs would wait for the reader.
posix::UniqueFd without_blocking(int terminal) {
  const std::string path = "/proc/self/fd/" + std::to_string(terminal);
  return posix::UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

std::size_t columns(int terminal) {
  winsize size{};
  return ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualColumns;
}
}  // namespace

bool redraws_lines(int descriptor) {
  const char* kind = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
}

std::string fitted(std::string_view fields, std::size_t columns) {
  constexpr std::string_view kSpaces = "  ";
  std::string line;
  while (!fields.empty()) {
    const std::size_t end = std::min(fields.find('\t'), fields.size());
    const std::string_view field = fields.substr(0, end);
    fields.remove_prefix(std::min(end + 1, fields.size()));
    const std::string_view before = line.empty() ? std::string_view() : kSpaces;
    if (line.size() + before.size() + field.size() > columns) continue;
    line.append(before).append(field);
  }
  return line;
}

Output::Output(int descriptor)
    : fd_(descriptor), to_(descriptor), copy_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3)), redraws_(redraws_lines(descriptor)) {
  struct stat status {};
  const bool terminal = ::isatty(fd_) == 1;
  // Of other kinds, such as /dev/null, epoll takes none, and they always have room.
  waits_ = ::fstat(fd_, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) || terminal) && copy_;
  if (!terminal) return;
  if (posix::UniqueFd own = without_blocking(fd_)) {
    copy_ = std::move(own);
    to_ = copy_.get();
  }
}

void Output::append(std::string_view text) {
  if (error_ != 0) return;
  show_status({});
  pending_.append(text);
}

void Output::show_status(std::string_view fields) {
  if (!redraws_ || error_ != 0) return;
  if (shows_status_) pending_.append(kEraseLine);
  // A line that fills the terminal would scroll it.
  const std::string line = fitted(fields, columns(fd_) - 1);
  pending_.append(line);
  shows_status_ = !line.empty();
}

bool Output::has_room(int milliseconds) const {
  if (!waits_) return true;
  pollfd event{copy_.get(), POLLOUT, 0};
  return ::poll(&event, 1, milliseconds) > 0;
}

bool Output::write_some() {
  const std::size_t left = pending_.size() - written_;
  const ssize_t written = ::write(to_, pending_.data() + written_, waits_ && left > kPipePiece ? kPipePiece : left);
  if (written < 0) {
    if (errno == EINTR) return true;
    if (errno == EAGAIN) {
      ::poll(nullptr, 0, 1);  // a terminal may poll writable though the next character doesn't fit
      return false;
    }
    // For any other error (closed, broken pipe, disk full), trying again won't help.
    error_ = errno;
    pending_.clear();
    written_ = 0;
    return false;
  }
  written_ += static_cast<std::size_t>(written);
  if (written_ == pending_.size()) {
    pending_.clear();
    written_ = 0;
  }
  return true;
}

void Output::flush() {
  while (!pending_.empty() && has_room(0) && write_some()) {
  }
  if (written_ > kReadSize) {
    pending_.erase(0, written_);
    written_ = 0;
  }
}

bool Output::drain(int milliseconds) {
  const std::uint64_t began = posix::now_ns();
  while (!pending_.empty()) {
    const auto waited = static_cast<std::int64_t>((posix::now_ns() - began) / 1'000'000);
    if (!has_room(static_cast<int>(std::max<std::int64_t>(0, milliseconds - waited)))) return false;
    if (!write_some() && waited >= milliseconds) return error_ != 0;
  }
  return true;
}

void Output::abandon() {
  pending_.clear();
  written_ = 0;
  waits_ = false;
  to_ = fd_;
  shows_status_ = redraws_ = false;
  const posix::UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (null) ::dup2(null.get(), fd_);
}

LineRelay::LineRelay(posix::UniqueFd pipe, std::string prefix, bool whole_lines)
    : pipe_(std::move(pipe)), prefix_(std::move(prefix)), whole_lines_(whole_lines) {
  ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
}

bool LineRelay::read_into(Output& output) {
  std::array<char, kReadSize> buffer;
  while (pipe_) {
    const ssize_t count = ::read(pipe_.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return false;
    if (count <= 0) {
      pipe_.reset();
      return false;
    }
    pass_on({buffer.data(), static_cast<std::size_t>(count)}, output);
    return true;
  }
  return false;
}

void LineRelay::pass_on(std::string_view bytes, Output& output) {
  if (!whole_lines_) {
    output.append(bytes);
    return;
  }
  for (std::size_t newline = 0; (newline = bytes.find('\n')) != std::string_view::npos; bytes.remove_prefix(newline + 1)) {
    output.append(prefix_);
    output.append(partial_);
    output.append(bytes.substr(0, newline + 1));
    partial_.clear();
  }
  partial_.append(bytes);
  if (partial_.size() > kLongestLine) finish(output);
}

void LineRelay::finish(Output& output) {
  if (partial_.empty()) return;
  output.append(prefix_);
  output.append(partial_);
  output.append("\n");
  partial_.clear();
}

}  // namespace tsprun::detail::launcher
