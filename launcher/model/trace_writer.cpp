// Buffers text, and compresses it with zlib.
#include "launcher/model/trace_writer.h"

#include "transport/cause.h"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

namespace tsprun::detail::launcher {

namespace {

/// Window bits for zlib: 2^15 bytes, plus 16 to ask for gzip's header and trailer.
constexpr int kGzipWindow = 15 + 16;
constexpr int kMemoryLevel = 8;
/// The fastest level: events are so similar that it shrinks them to a tenth, and the ranks wait for each other's turn.
constexpr int kLevel = 1;

}  // namespace

struct TraceWriter::Gzip {
  z_stream stream{};
  Gzip() = default;
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  ~Gzip() { ::deflateEnd(&stream); }
};

bool is_gzip_name(std::string_view path) { return path.ends_with(".gz"); }

TraceWriter::TraceWriter(const std::string& path, bool first) : path_(path) {
  const int flags = O_WRONLY | O_APPEND | O_CLOEXEC | (first ? O_CREAT | O_TRUNC : 0);
  file_ = posix::UniqueFd(::open(path.c_str(), flags, 0666));
  if (!file_) throw system_error(Cause::refused, fmt::format("--trace {}: opening it", path_), errno);
  if (!is_gzip_name(path)) return;
  gzip_ = std::make_unique<Gzip>();
  if (::deflateInit2(&gzip_->stream, kLevel, Z_DEFLATED, kGzipWindow, kMemoryLevel, Z_DEFAULT_STRATEGY) != Z_OK)
    throw Error(Cause::refused, fmt::format("--trace {}: zlib can't compress it; a name without .gz works", path_));
}

TraceWriter::~TraceWriter() = default;

void TraceWriter::take(std::string_view piece) {
  if (gzip_ != nullptr) compress(piece, false);
  else write(piece);
}

void TraceWriter::finish() {
  flush();
  if (gzip_ != nullptr) compress({}, true);
}

void TraceWriter::compress(std::string_view piece, bool last) {
  z_stream& stream = gzip_->stream;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));
  stream.avail_in = static_cast<uInt>(piece.size());
  std::array<char, kPiece> out;
  int state = Z_OK;
  do {
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    state = ::deflate(&stream, last ? Z_FINISH : Z_NO_FLUSH);
    write({out.data(), out.size() - stream.avail_out});
  } while (last ? state == Z_OK : stream.avail_out == 0);
  if (last && state != Z_STREAM_END) throw Error(Cause::refused, fmt::format("--trace {}: zlib can't compress it", path_));
}

void TraceWriter::write(std::string_view rest) {
  while (!rest.empty()) {
    const ssize_t written = ::write(file_.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error(Cause::refused, fmt::format("--trace {}: writing it", path_), errno);
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace tsprun::detail::launcher
