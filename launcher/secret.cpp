// Reads, checks and makes secrets in files that only their owner may read.
#include "launcher/secret.h"

#include "transport/cause.h"
#include "transport/posix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <pwd.h>
#include <span>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace tsprun::detail::launcher {

namespace {

constexpr std::size_t kMostBytes = 4096;
/// Least length of a secret. An eavesdropper on one connection can try guesses at leisure; only the length of a key withstands
/// that.
constexpr std::size_t kLeastBytes = 16;

constexpr std::string_view kVariable = "TSP_SECRET";

bootstrap::Secret long_enough(const GivenSecret& given, const std::string& where, const std::string& remedy) {
  if (given.bytes >= kLeastBytes) return given.secret;
  throw Error(Cause::refused,
              fmt::format("{}: a secret of {} bytes can be guessed by who listens on the network; {} are the least. Make a good "
                          "one, the same for all nodes, by: {}",
                          where, given.bytes, kLeastBytes, remedy));
}

/// Reads the beginning of a file, as much as fits. Throws Error(refused) if a FIFO has no end by the deadline.
std::string_view read_into(std::span<std::byte> room, const posix::UniqueFd& file, const std::string& where,
                           std::uint64_t timeout_ns) {
  const std::uint64_t deadline = posix::now_ns() + timeout_ns;
  std::size_t size = 0;
  while (size < room.size()) {
    const std::uint64_t now = posix::now_ns();
    pollfd ready{file.get(), POLLIN, 0};
    const int events =
        now < deadline ? ::poll(&ready, 1, static_cast<int>(std::min<std::uint64_t>((deadline - now) / 1'000'000 + 1, 1000))) : 0;
    if (events == 0 && posix::now_ns() >= deadline) {
      throw Error(Cause::refused, fmt::format("{}: nobody has written the secret and closed the FIFO within {:g} s (--timeout)",
                                              where, static_cast<double>(timeout_ns) * 1e-9));
    }
    if (events <= 0) continue;
    const ssize_t got = ::read(file.get(), room.data() + size, room.size() - size);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  return {reinterpret_cast<const char*>(room.data()), size};
}

bootstrap::Secret from_file(const std::string& option, const std::string& path, std::uint64_t timeout_ns) {
  // O_NONBLOCK: opening a FIFO, as <(command) makes one, doesn't wait for its writer; the reading does.
  const posix::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw system_error(Cause::refused, fmt::format("{} {}: the secret can't be read", option, path), errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw system_error(Cause::refused, fmt::format("{} {}", option, path), errno);
  if (S_ISDIR(status.st_mode)) throw Error(Cause::refused, fmt::format("{} {}: it is a folder; a file is wanted", option, path));
  if (S_ISREG(status.st_mode) && (status.st_mode & 077) != 0) {
    throw Error(Cause::refused,
                fmt::format("{} {}: others may read it (mode {:o}); try chmod 600", option, path, status.st_mode & 0777));
  }
  const posix::HiddenMemory room(kMostBytes + 1);
  std::string_view text = read_into(room.bytes(), file, fmt::format("{} {}", option, path), timeout_ns);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  if (text.size() > kMostBytes) throw Error(Cause::refused, fmt::format("{} {}: more than {} bytes", option, path, kMostBytes));
  return long_enough({bootstrap::secret_from_text(text), text.size()}, fmt::format("{} {}", option, path),
                     fmt::format("(umask 077; head -c 32 /dev/urandom | base64 > {})", path));
}

/// Returns the error for a file that can't be made, with what works without it.
Error cannot_make(const std::filesystem::path& path, int reason) {
  return Error(Cause::refused, fmt::format("making the secret {}: {}; name another file by --secret-file, or set TSP_SECRET",
                                           path.string(), std::strerror(reason)));
}

/// Makes folders that only their owner may use, whatever the umask: anyone else who may write into the folder could replace the
/// secret.
void make_folders(const std::filesystem::path& folder) {
  std::error_code unknown;
  if (folder.empty() || std::filesystem::exists(folder, unknown)) return;
  make_folders(folder.parent_path());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) throw cannot_make(folder, errno);
}

/// Makes the file with a fresh secret, unless another process does so at the same moment.
void make(const std::filesystem::path& path) {
  make_folders(path.parent_path());
  const std::string temporary = fmt::format("{}.{}", path.string(), ::getpid());
  const posix::UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) throw cannot_make(path, errno);
  constexpr std::string_view kDigits = "0123456789abcdef";
  const bootstrap::Secret fresh = bootstrap::random_secret();
  const posix::HiddenMemory text(2 * bootstrap::Secret::kBytes + 1);
  char* end = reinterpret_cast<char*>(text.bytes().data());
  for (const std::byte byte : fresh.bytes()) {
    *end++ = kDigits[std::to_integer<std::size_t>(byte >> 4)];
    *end++ = kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  *end = '\n';
  const bool written = ::write(file.get(), text.bytes().data(), text.bytes().size()) == static_cast<ssize_t>(text.bytes().size());
  // link(2) doesn't replace an existing file: two first jobs must agree on one secret.
  const bool linked = written && (::link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const int reason = errno;
  ::unlink(temporary.c_str());
  if (!linked) throw cannot_make(path, reason);
}

/// Returns the user's home folder: HOME, or what the password database says (srun --export=NONE sets no HOME).
std::filesystem::path home_folder() {
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return home;
  if (const passwd* const user = ::getpwuid(::getuid()); user != nullptr && user->pw_dir != nullptr && *user->pw_dir != '\0')
    return user->pw_dir;
  throw Error(Cause::refused, fmt::format("--secret-file: HOME isn't set, and the password database knows no home of user {}, so "
                                          "there is no ~/.config/tsprun/secret; name a file, or set TSP_SECRET",
                                          ::getuid()));
}

}  // namespace

GivenSecret take_secret_from_environment() {
  char* const text = std::getenv(kVariable.data());
  if (text == nullptr) return {};
  GivenSecret given;
  given.bytes = std::strlen(text);
  if (given.bytes != 0) given.secret = bootstrap::secret_from_text(text);
  ::explicit_bzero(text, given.bytes);
  ::unsetenv(kVariable.data());
  return given;
}

bootstrap::Secret load_secret(const std::string& file, const GivenSecret& of_environment, std::uint64_t timeout_ns) {
  if (!file.empty()) return from_file("--secret-file", file, timeout_ns);
  if (of_environment.bytes != 0)
    return long_enough(of_environment, std::string(kVariable), "export TSP_SECRET=$(head -c 32 /dev/urandom | base64)");
  const std::filesystem::path path = home_folder() / ".config" / "tsprun" / "secret";
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) make(path);
  struct stat folder {};
  if (::stat(path.parent_path().c_str(), &folder) == 0 && (folder.st_mode & 022) != 0) {
    throw Error(Cause::refused, fmt::format("the secret {}: others may write into its folder (mode {:o}), and put another in its "
                                            "place; try chmod 700 {}",
                                            path.string(), folder.st_mode & 0777, path.parent_path().string()));
  }
  return from_file("the secret", path.string(), timeout_ns);
}

}  // namespace tsprun::detail::launcher
