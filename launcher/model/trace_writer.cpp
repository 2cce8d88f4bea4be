// Buffers text, and writes it by zlib's file functions, which compress or don't.
#include "launcher/model/trace_writer.h"

#include "transport/cause.h"
#include "transport/posix.h"

#include <cerrno>
#include <fcntl.h>
#include <zlib.h>

namespace tsprun::detail::launcher {

bool is_gzip_name(std::string_view path) { return path.ends_with(".gz"); }

TraceWriter::TraceWriter(const std::string& path, bool first) : path_(path) {
  const int flags = O_WRONLY | O_APPEND | O_CLOEXEC | (first ? O_CREAT | O_TRUNC : 0);
  posix::UniqueFd file(::open(path.c_str(), flags, 0666));
  if (!file) throw system_error(Cause::refused, fmt::format("--trace {}: opening it", path_), errno);
  // The fastest level: events are so similar that it shrinks them to a tenth, and the ranks wait for each other's turn.
  file_.reset(::gzdopen(file.get(), is_gzip_name(path) ? "wb1" : "wbT"));
  if (!file_) throw Error(Cause::refused, fmt::format("--trace {}: zlib can't compress it; a name without .gz works", path_));
  file.release();
  ::gzbuffer(file_.get(), kPiece);
}

void TraceWriter::Close::operator()(gzFile_s* file) const { ::gzclose(file); }

void TraceWriter::take(std::string_view piece) {
  if (!piece.empty() && ::gzwrite(file_.get(), piece.data(), static_cast<unsigned>(piece.size())) == 0) fail();
}

void TraceWriter::finish() {
  flush();
  if (::gzclose(file_.release()) != Z_OK) fail();
}

void TraceWriter::fail() const { throw system_error(Cause::refused, fmt::format("--trace {}: writing it", path_), errno); }

}  // namespace tsprun::detail::launcher
