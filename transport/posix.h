// RAII for what the operating system hands out: file descriptors and mappings; the monotonic clock; and what the kernel tells of
// a process.
#pragma once

#include <boost/interprocess/mapped_region.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <sys/types.h>
#include <utility>

namespace tsprun::posix {

/// Owns a file descriptor.
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
  int release() { return std::exchange(fd_, -1); }
  void reset();
  /// Errors are thrown as Error(refused).
  void set_close_on_exec(bool on) const;

 private:
  int fd_ = -1;
};

/// Owns a shared, read-write mapping of a file from its start (Boost.Interprocess does the mapping).
class Mapping {
 public:
  Mapping() = default;
  /// Throws Error(out_of_memory) if the address space can't be had.
  Mapping(const UniqueFd& file, std::size_t bytes);

  std::span<std::byte> bytes() const;

 private:
  boost::interprocess::mapped_region region_;
};

/// Nanoseconds of CLOCK_MONOTONIC: the same clock for all processes of a machine.
std::uint64_t now_ns();

/// The first words of /proc/PID/stat.
struct ProcessStat {
  pid_t pid = 0;
  char state = '?';  ///< R, S, D, T (stopped), t (traced), Z …
  pid_t parent = 0;
  pid_t group = 0;
  std::uint64_t faults = 0;  ///< pages that it has touched for the first time, or anew
  std::uint64_t cpu = 0;     ///< time that it has had of cores, in the kernel's ticks
};
/// None if there is no such process.
std::optional<ProcessStat> process_stat(pid_t pid);

/// Bytes that the process has read and written so far, by whatever calls; 0 if that can't be seen.
std::uint64_t bytes_moved(pid_t pid);

/// True if the process is stopped (SIGSTOP, SIGTSTP, a debugger); false if there is none.
bool is_stopped(pid_t pid);

}  // namespace tsprun::posix
