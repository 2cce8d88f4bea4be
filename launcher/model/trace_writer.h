// Writes text into the file of a trace piece by piece, gzipped if the file's name ends in .gz.
//
// The ranks of a job append to one file in turn. Each writes a gzip member of its own; members in sequence are a valid gzip file
// (RFC 1952, section 2.2), which gzip, Python and Perfetto read as one text.
#pragma once

#include "core/trace/trace_text.h"

#include <memory>
#include <string>
#include <string_view>

struct gzFile_s;  // zlib's

namespace tsprun::detail::launcher {

/// Returns true if a file of this name is written gzipped.
bool is_gzip_name(std::string_view path);

/// Writer of one rank's part of the file.
class TraceWriter final : public TraceText {
 public:
  /// Opens `path` for appending. `first`: creates the file, or empties it. Throws Error(refused).
  TraceWriter(const std::string& path, bool first);

  /// Writes the buffer and ends this rank's part. Nothing may be printed afterwards. Throws Error(refused) as flush() does.
  void finish();

 private:
  struct Close {
    void operator()(gzFile_s* file) const;
  };
  void take(std::string_view piece) override;
  [[noreturn]] void fail() const;

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

}  // namespace tsprun::detail::launcher
