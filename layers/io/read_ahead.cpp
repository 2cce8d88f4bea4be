// Calls readahead(2), piece by piece: what exceeds both the device's largest request and its window of reading ahead, 128 KiB
// unless somebody has changed it, the kernel leaves out without a word.
#include "layers/io/read_ahead.h"

#include "layers/io/file.h"
#include "transport/signals_blocked.h"

#include <algorithm>
#include <exception>
#include <fcntl.h>
#include <system_error>
#include <utility>

namespace tsprun::detail::file {

namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{128} << 10;

}  // namespace

ReadAhead::ReadAhead(std::vector<Range> ranges, std::uint64_t most) : most_(most) {
  const SignalsBlocked blocked;
  try {
    thread_ = std::jthread([this, ranges = std::move(ranges)](const std::stop_token& stop) {
      posix::UniqueFd file;
      const std::filesystem::path* open = nullptr;  // path of the file
      for (const Range& range : ranges) {
        try {
          if (open == nullptr || *open != range.path) file = open_to_read(range.path);
          open = &range.path;
          ask_for(file, range, stop);
        } catch (const std::exception&) {  // who reads the file for good says so
          open = nullptr;
        }
        if (stop.stop_requested()) return;
      }
    });
  } catch (const std::system_error&) {  // no more threads
  }
}

void ReadAhead::ask_for(const posix::UniqueFd& file, const Range& range, const std::stop_token& stop) {
  const std::uint64_t bytes = size(file, range.path);
  const std::uint64_t begin = std::min(range.offset, bytes);
  const std::uint64_t end = begin + std::min(range.bytes, bytes - begin);
  for (std::uint64_t offset = begin; offset < end;) {
    const std::uint64_t piece = std::min(kPieceBytes, end - offset);
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [&] { return asked_ + piece <= passed_ + most_; })) return;
    lock.unlock();
    if (stop.stop_requested() || ::readahead(file.get(), static_cast<off64_t>(offset), piece) != 0) return;
    asked_ += piece;
    offset += piece;
  }
}

void ReadAhead::passed(std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    passed_ += bytes;
  }
  changed_.notify_one();
}

}  // namespace tsprun::detail::file
