// Wraps open, pread, pwrite and fsync, repeating calls that were cut short.
#include "layers/io/file.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace tsprun::detail::file {

namespace {

struct stat look(const posix::UniqueFd& file, const std::filesystem::path& path) {
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) throw system_error(Cause::refused, fmt::format("{}: fstat", path.string()), errno);
  return found;
}

}  // namespace

bool exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

posix::UniqueFd open_to_read(const std::filesystem::path& path) {
  // O_NONBLOCK: a FIFO without a writer must be refused, not waited for.
  posix::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw system_error(Cause::refused, fmt::format("{}: can't be opened", path.string()), errno);
  if (!S_ISREG(look(file, path).st_mode)) throw Error(Cause::refused, fmt::format("{}: expected a regular file", path.string()));
  return file;
}

std::uint64_t size(const posix::UniqueFd& file, const std::filesystem::path& path) {
  return static_cast<std::uint64_t>(look(file, path).st_size);
}

void read(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t got = ::pread(file.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error(Cause::refused, fmt::format("{}: reading at byte {}", path.string(), offset), errno);
    if (got == 0) {
      throw Error(Cause::refused, fmt::format("{}: ends at byte {}, {} bytes early: it was cut while in use", path.string(),
                                              offset, into.size()));
    }
    offset += static_cast<std::uint64_t>(got);
    into = into.subspan(static_cast<std::size_t>(got));
  }
}

std::string read_text(const std::filesystem::path& path, std::uint64_t most, std::string_view what) {
  const posix::UniqueFd file = open_to_read(path);
  const std::uint64_t bytes = size(file, path);
  if (bytes > most) {
    throw Error(Cause::refused, fmt::format("{}: {} bytes; expected {} of at most {}", path.string(), bytes, what, most));
  }
  std::string text(bytes, '\0');
  read(file, path, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t offset,
           std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t put = ::pwrite(file.get(), from.data(), from.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      throw system_error(Cause::refused, fmt::format("{}: writing {} bytes at byte {}", path.string(), from.size(), offset),
                         errno);
    }
    offset += static_cast<std::uint64_t>(put);
    from = from.subspan(static_cast<std::size_t>(put));
  }
}

posix::UniqueFd open_unnamed(const std::filesystem::path& folder) {
  constexpr mode_t kMode = 0644;
  const std::filesystem::path name = folder.empty() ? "." : folder;
  return posix::UniqueFd(::open(name.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kMode));
}

void sync(const posix::UniqueFd& file, const std::filesystem::path& path) {
  if (::fsync(file.get()) != 0) throw system_error(Cause::refused, fmt::format("{}: fsync", path.string()), errno);
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path name = folder.empty() ? "." : folder;
  const posix::UniqueFd handle(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle) throw system_error(Cause::refused, fmt::format("{}: can't be opened", name.string()), errno);
  sync(handle, name);
}

}  // namespace tsprun::detail::file
