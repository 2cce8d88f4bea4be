// Writes a file of another name and renames it.
#include "layers/io/kept_tokens.h"

#include "layers/io/file.h"
#include "transport/cause.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <sys/stat.h>
#include <type_traits>
#include <unistd.h>

namespace tsprun::detail {

namespace {

constexpr std::array<char, 8> kMagicOfTokens = {'t', 's', 'p', 'r', 'u', 'n', 'T', 'K'};
constexpr std::size_t kDigitsOfKey = 16;

/// What lies before the ids.
struct HeaderOfTokens {
  std::array<char, 8> magic;
  Digest key;
  Digest of_ids;
  std::uint64_t count;
};
static_assert(sizeof(HeaderOfTokens) == 48 && std::is_trivially_copyable_v<HeaderOfTokens> && sizeof(Token) == 4);
static_assert(std::endian::native == std::endian::little);

/// A file that is removed unless it has got its final name.
class Unfinished {
 public:
  explicit Unfinished(const std::filesystem::path& path) : name_(path.string() + ".XXXXXX") {
    file_ = posix::UniqueFd(::mkostemp(name_.data(), O_CLOEXEC));
    if (!file_) throw system_error(Cause::refused, fmt::format("{}: can't be made", path.string()), errno);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  ~Unfinished() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  const posix::UniqueFd& file() const { return file_; }
  void rename_to(const std::filesystem::path& path) {
    if (::rename(name_.c_str(), path.c_str()) != 0)
      throw system_error(Cause::refused, fmt::format("{}: renaming to {}", name_, path.string()), errno);
    name_.clear();
  }

 private:
  std::string name_;
  posix::UniqueFd file_;
};

}  // namespace

KeptTokens::KeptTokens(const std::filesystem::path& text, const Digest& key)
    : text_(text),
      path_(text.parent_path() /
            fmt::format(".{}.{}.tokens", text.filename().string(), hexadecimal(key).substr(0, kDigitsOfKey))),
      key_(key) {}

bool KeptTokens::is_trusted(const posix::UniqueFd& file) const {
  struct stat tokens {};
  struct stat text {};
  if (::fstat(file.get(), &tokens) != 0) return false;
  return tokens.st_uid == ::geteuid() || (::stat(text_.c_str(), &text) == 0 && tokens.st_uid == text.st_uid);
}

std::optional<std::vector<Token>> KeptTokens::read() const {
  if (!file::exists(path_)) return std::nullopt;
  try {
    const posix::UniqueFd file = file::open_to_read(path_);
    if (!is_trusted(file)) return std::nullopt;
    const std::uint64_t bytes = file::size(file, path_);
    HeaderOfTokens header{};
    if (bytes < sizeof(header)) return std::nullopt;
    file::read(file, path_, 0, std::as_writable_bytes(std::span(&header, 1)));
    if (header.magic != kMagicOfTokens || header.key != key_ || (bytes - sizeof(header)) % sizeof(Token) != 0 ||
        header.count != (bytes - sizeof(header)) / sizeof(Token))
      return std::nullopt;
    std::vector<Token> ids(static_cast<std::size_t>(header.count));
    file::read(file, path_, sizeof(header), std::as_writable_bytes(std::span(ids)));
    if (digest(std::as_bytes(std::span(ids))) != header.of_ids) return std::nullopt;
    return ids;
  } catch (const Error&) {  // it can't be read
    return std::nullopt;
  }
}

void KeptTokens::write(std::span<const Token> ids) const {
  const HeaderOfTokens header{.magic = kMagicOfTokens, .key = key_, .of_ids = digest(std::as_bytes(ids)), .count = ids.size()};
  Unfinished unfinished(path_);  // readable for its owner alone
  if (struct stat text{}; ::stat(text_.c_str(), &text) == 0) ::fchmod(unfinished.file().get(), text.st_mode & 0666U);
  file::write(unfinished.file(), path_, 0, std::as_bytes(std::span(&header, 1)));
  file::write(unfinished.file(), path_, sizeof(header), std::as_bytes(ids));
  unfinished.rename_to(path_);
}

}  // namespace tsprun::detail
