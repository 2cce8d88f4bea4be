// Reading of files into the page cache beside other work, so that who needs them then doesn't wait for a disk that was idle.
#pragma once

#include "transport/posix.h"

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace tsprun::detail::file {

/// Bytes of a model that the processes of a node together read ahead.
inline constexpr std::uint64_t kMostAhead = std::uint64_t{1} << 30;

/// Bytes of a file; those behind its end don't count.
struct Range {
  std::filesystem::path path;
  std::uint64_t offset = 0;
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();
};

/// A thread that asks the kernel for ranges of files, in order, until all are asked for or the object goes. A hint: it holds no
/// memory, and a file that can't be read costs nothing but the help.
class ReadAhead {
 public:
  /// Starts the thread; it takes no signals. It asks for at most `most` bytes, in pieces of 128 KiB, more than have passed: what
  /// lies in the page cache unused for long may leave it. Where there can't be a thread, nothing is asked for.
  ReadAhead(std::vector<Range> ranges, std::uint64_t most);

  /// Notes that so many more bytes of the ranges were read, in whichever order. Any thread.
  void passed(std::uint64_t bytes);

 private:
  void ask_for(const posix::UniqueFd& file, const Range& range, const std::stop_token& stop);

  std::uint64_t most_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::uint64_t passed_ = 0;  ///< under mutex_
  std::uint64_t asked_ = 0;   ///< the thread's own
  std::jthread thread_;       ///< its destructor waits for the piece under way
};

}  // namespace tsprun::detail::file
