// Maps memory, and parses /proc/PID/stat and /proc/PID/io.
#include "transport/posix.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace tsprun::detail::posix {

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void UniqueFd::set_close_on_exec(bool on) const {
  const int flags = ::fcntl(fd_, F_GETFD);
  const int wanted = on ? flags | FD_CLOEXEC : flags & ~FD_CLOEXEC;
  if (flags < 0 || ::fcntl(fd_, F_SETFD, wanted) < 0) {
    throw system_error(Cause::refused, fmt::format("setting close-on-exec of descriptor {}", fd_), errno);
  }
}

Mapping::Mapping(std::size_t bytes, int flags, int protection) {
  void* const begin = ::mmap(nullptr, bytes, protection, flags, -1, 0);
  if (begin != MAP_FAILED) bytes_ = {static_cast<std::byte*>(begin), bytes};
}

Mapping::~Mapping() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

HiddenMemory::HiddenMemory(std::size_t bytes) : pages_(bytes) {
  if (!pages_) throw system_error(Cause::out_of_memory, fmt::format("mapping {} bytes for a key", bytes), errno);
  ::madvise(pages_.bytes().data(), bytes, MADV_DONTDUMP);
}

HiddenMemory::~HiddenMemory() { ::explicit_bzero(pages_.bytes().data(), pages_.bytes().size()); }

int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd room{descriptor, POLLOUT, 0};
      if (::poll(&room, 1, -1) < 0 && errno != EINTR) return errno;
      continue;
    }
    if (written < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

std::uint64_t now_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(time.tv_nsec);
}

void sleep_ns(std::uint64_t nanoseconds) {
  const timespec duration{0, static_cast<long>(nanoseconds)};
  ::nanosleep(&duration, nullptr);
}

std::optional<ProcessStat> process_stat(pid_t pid) {
  const UniqueFd file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  char text[512];
  const ssize_t length = file ? ::read(file.get(), text, sizeof text - 1) : -1;
  if (length <= 0) return std::nullopt;
  text[length] = '\0';
  // pid (name) state parent group …; the name (15 bytes at most) may hold spaces and parentheses, so look for the last ')'.
  const char* close = std::strrchr(text, ')');
  ProcessStat stat;
  stat.pid = pid;
  unsigned long minor = 0;
  unsigned long major = 0;
  unsigned long user = 0;
  unsigned long system = 0;
  // … session terminal foreground flags minor (children's) major (children's) user system …
  constexpr const char* kFields = " %c %d %d %*d %*d %*d %*u %lu %*u %lu %*u %lu %lu";
  if (close == nullptr ||
      std::sscanf(close + 1, kFields, &stat.state, &stat.parent, &stat.group, &minor, &major, &user, &system) != 7)
    return std::nullopt;
  stat.faults = minor + major;
  stat.cpu = user + system;
  return stat;
}

std::uint64_t bytes_moved(pid_t pid) {
  const UniqueFd file(::open(fmt::format("/proc/{}/io", pid).c_str(), O_RDONLY | O_CLOEXEC));
  char text[256];
  const ssize_t length = file ? ::read(file.get(), text, sizeof text - 1) : -1;
  if (length <= 0) return 0;
  text[length] = '\0';
  unsigned long long read = 0;
  unsigned long long written = 0;
  return std::sscanf(text, "rchar: %llu wchar: %llu", &read, &written) == 2 ? read + written : 0;
}

bool is_stopped(pid_t pid) {
  const std::optional<ProcessStat> stat = process_stat(pid);
  return stat && (stat->state == 'T' || stat->state == 't');
}

}  // namespace tsprun::detail::posix
