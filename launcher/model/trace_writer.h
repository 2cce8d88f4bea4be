// Text into the file of a trace, a piece after another, gzipped if the file's name ends in .gz.
//
// The ranks of a job append to one file in turns. Each writes a gzip member of its own, and members one after another are a gzip
// file (RFC 1952, section 2.2), which gzip, Python and Perfetto read as one text.
#pragma once

#include "transport/posix.h"

#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <string>
#include <string_view>

namespace tsprun::launcher {

/// Whether the file of this name is written gzipped.
bool is_gzip_name(std::string_view path);

class TraceWriter {
 public:
  /// Opens `path` for appending; `first`: it is created, or emptied. Throws Error(refused).
  TraceWriter(const std::string& path, bool first);
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;
  ~TraceWriter();

  template <class... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Arguments>(arguments)...);
  }
  /// So much has been printed that flush() is worth it.
  bool full() const;
  /// Writes what was printed. Throws Error(refused) if the file system won't take it.
  void flush();
  /// flush(), and the end of this writer's part. Nothing may be printed after it.
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

}  // namespace tsprun::launcher
