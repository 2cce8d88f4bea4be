// Writes text into the file of a trace piece by piece, gzipped if the file's name ends in .gz.
//
// The ranks of a job append to one file in turn. Each writes a gzip member of its own; members in sequence are a valid gzip file
// (RFC 1952, section 2.2), which gzip, Python and Perfetto read as one text.
#pragma once

#include "transport/posix.h"

#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <string>
#include <string_view>

namespace tsprun::detail::launcher {

/// Returns true if a file of this name is written gzipped.
bool is_gzip_name(std::string_view path);

/// Writer of one rank's part of the file. Printed text is buffered; call flush() when full() says so.
class TraceWriter {
 public:
  /// Opens `path` for appending. `first`: creates the file, or empties it. Throws Error(refused).
  TraceWriter(const std::string& path, bool first);
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;
  ~TraceWriter();

  /// Appends formatted text to the buffer.
  template <class... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Arguments>(arguments)...);
  }
  /// Returns true if the buffer holds enough text to be worth a flush() (64 KiB).
  bool full() const;
  /// Writes the buffer to the file. Throws Error(refused) if the file system can't take it.
  void flush();
  /// Writes the buffer and ends this rank's part. Nothing may be printed afterwards. Throws Error(refused) as flush() does.
  void finish();

 private:
  struct Gzip;
  void write(std::string_view bytes);
  void compress(bool last);

  std::string path_;
  posix::UniqueFd file_;
  fmt::memory_buffer buffer_;
  std::unique_ptr<Gzip> gzip_;  // null: plain text
};

}  // namespace tsprun::detail::launcher
