// RAII for file descriptors and mappings, writing, the monotonic clock, and the state of a process as the kernel reports it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <sys/mman.h>
#include <sys/types.h>
#include <utility>

namespace tsprun::detail::posix {

/// Owns a file descriptor and closes it; -1: owns none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  /// Gives the descriptor up without closing it.
  int release() { return std::exchange(fd_, -1); }
  /// Closes the descriptor.
  void reset();
  /// Sets or clears FD_CLOEXEC. Throws Error(refused) if fcntl(2) fails.
  void set_close_on_exec(bool on) const;

 private:
  int fd_ = -1;
};

/// Owns mapped pages of this process, or none, and unmaps them. (Boost.Interprocess maps what all ranks of a node share:
/// shm/node_memory.h.)
class Mapping {
 public:
  Mapping() = default;
  /// Maps `bytes`, rounded up to pages, as mmap(2) does: private zeroed memory unless the arguments say otherwise. If that fails,
  /// it owns none, and errno says why.
  explicit Mapping(std::size_t bytes, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int protection = PROT_READ | PROT_WRITE);
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  explicit operator bool() const { return !bytes_.empty(); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

/// Owns pages of this process alone that core dumps leave out (MADV_DONTDUMP), for keys. They are zero at first, and wiped before
/// they are given back. A child made by fork(2) has a copy of them.
class HiddenMemory {
 public:
  /// Maps at least `bytes` (more than 0). Throws Error(out_of_memory).
  explicit HiddenMemory(std::size_t bytes);
  HiddenMemory(const HiddenMemory&) = delete;
  HiddenMemory& operator=(const HiddenMemory&) = delete;
  ~HiddenMemory();

  std::span<std::byte> bytes() const { return pages_.bytes(); }

 private:
  Mapping pages_;
};

/// Writes all of `text`, goes on where a signal interrupts it, and waits for room where the descriptor is non-blocking, as any
/// process that shares a pipe can make it. Returns the errno of a failure; 0: none.
int write_all(int descriptor, std::string_view text);

/// Returns nanoseconds of CLOCK_MONOTONIC: the same clock for all processes of a machine.
std::uint64_t now_ns();

/// Sleeps so long, or until a signal comes; less than a second.
void sleep_ns(std::uint64_t nanoseconds);

/// Fields of /proc/PID/stat (proc(5)).
struct ProcessStat {
  pid_t pid = 0;
  char state = '?';  ///< R, S, D, T (stopped), t (traced), Z …
  pid_t parent = 0;
  pid_t group = 0;
  std::uint64_t faults = 0;  ///< page faults, minor and major
  std::uint64_t cpu = 0;     ///< user and system time, in clock ticks
};
/// Reads the state of a process; nothing if there is no such process.
std::optional<ProcessStat> process_stat(pid_t pid);

/// Returns the bytes that the process has read and written so far, by any system call (rchar and wchar of /proc/PID/io); 0 if
/// that can't be read.
std::uint64_t bytes_moved(pid_t pid);

/// Returns true if the process is stopped (by SIGSTOP, SIGTSTP or a debugger); false if there is no such process.
bool is_stopped(pid_t pid);

}  // namespace tsprun::detail::posix
