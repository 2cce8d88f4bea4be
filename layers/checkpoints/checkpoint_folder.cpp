// Locks, renames and deletes checkpoint folders so that a crash never leaves half a checkpoint under a final name.
#include "layers/checkpoints/checkpoint_folder.h"

#include "layers/io/file.h"
#include "transport/cause.h"
#include "transport/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <functional>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>

namespace tsprun::detail {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kPartial = ".partial";
constexpr std::string_view kReplaced = ".replaced";  // before kPartial

fs::path partial_of(const fs::path& dir, std::uint64_t step) { return dir / (step_folder(step) + std::string(kPartial)); }

void refuse_if(const std::error_code& error, const fs::path& path, std::string_view what) {
  if (error) throw system_error(Cause::refused, fmt::format("{}: {}", path.string(), what), error.value());
}

std::vector<fs::path> entries_of(const fs::path& dir) {
  std::error_code error;
  std::vector<fs::path> entries;
  auto at = fs::directory_iterator(dir, error);
  refuse_if(error, dir, "can't be listed");
  for (; at != fs::directory_iterator(); at.increment(error)) {
    refuse_if(error, dir, "can't be listed");
    entries.push_back(at->path());
  }
  refuse_if(error, dir, "can't be listed");
  return entries;
}

/// Locks a folder. Returns an empty descriptor if another process holds the lock, or if it isn't a folder.
posix::UniqueFd lock(const fs::path& folder) {
  posix::UniqueFd handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (handle && ::flock(handle.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) handle.reset();
  return handle;  // if the file system has no locks, the folder counts as free
}

void delete_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  refuse_if(error, folder, "can't be deleted");
}

/// A *.partial folder.
struct Leftover {
  fs::path checkpoint;    // the name that it had or was to get
  bool is_whole = false;  // a process that died while it replaced this checkpoint has left it whole, and nothing has its name
};

std::optional<Leftover> leftover_of(const fs::path& entry) {
  const std::string whole_name = entry.filename().string();
  std::string_view name = whole_name;
  if (!name.ends_with(kPartial)) return std::nullopt;
  name.remove_suffix(kPartial.size());
  const bool replaced = name.ends_with(kReplaced);
  if (replaced) name.remove_suffix(kReplaced.size());
  if (!step_of(name)) return std::nullopt;
  std::error_code error;
  const fs::path checkpoint = entry.parent_path() / name;
  return Leftover{checkpoint, replaced && !fs::exists(checkpoint, error)};
}

}  // namespace

void make_folders(const fs::path& dir) {
  std::error_code error;
  if (fs::is_directory(dir, error)) return;
  if (dir.has_parent_path() && dir.parent_path() != dir) make_folders(dir.parent_path());
  if (dir.has_filename()) {
    fs::create_directory(dir, error);
    refuse_if(error, dir, "can't be made");
    file::sync_folder(dir.parent_path());
  }
}

std::string step_folder(std::uint64_t step) { return fmt::format("{}{:06}", kPrefix, step); }

std::optional<std::uint64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::optional<std::uint64_t> step = number_from<std::uint64_t>(name.substr(kPrefix.size()));
  return step && step_folder(*step) == name ? step : std::nullopt;
}

std::vector<std::uint64_t> steps_in(const fs::path& dir) {
  std::vector<std::uint64_t> steps;
  for (const fs::path& entry : entries_of(dir)) {
    std::error_code error;
    const auto step = step_of(entry.filename().string());
    if (step && fs::is_directory(entry, error)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

std::vector<fs::path> interrupted_in(const fs::path& dir) {
  std::vector<fs::path> found = entries_of(dir);
  std::erase_if(found, [](const fs::path& entry) {
    const std::optional<Leftover> leftover = leftover_of(entry);
    return !leftover || !leftover->is_whole;
  });
  return found;
}

void remove_leftovers(const fs::path& dir) {
  for (const fs::path& entry : entries_of(dir)) {
    const std::optional<Leftover> leftover = leftover_of(entry);
    if (!leftover) continue;
    const posix::UniqueFd held = lock(entry);
    if (!held) continue;
    if (!leftover->is_whole) {
      delete_folder(entry);
      continue;
    }
    std::error_code error;
    fs::rename(entry, leftover->checkpoint, error);
    refuse_if(error, entry, "can't get its name back");
  }
}

void remove_checkpoint(const fs::path& dir, std::uint64_t step) {
  const fs::path partial = partial_of(dir, step);
  std::error_code error;
  fs::rename(dir / step_folder(step), partial, error);
  refuse_if(error, dir / step_folder(step), "can't be renamed to delete it");
  delete_folder(partial);
}

PartialFolder::PartialFolder(const fs::path& dir, std::uint64_t step)
    : dir_(dir), partial_(partial_of(dir, step)), final_(dir / step_folder(step)) {
  make_folders(dir);
  remove_leftovers(dir);
  constexpr mode_t kMode = 0755;
  if (::mkdir(partial_.c_str(), kMode) != 0) {
    if (errno == EEXIST) {
      throw Error(Cause::refused, fmt::format("{}: exists, and is no leftover: another process writes it, or it is no folder",
                                              partial_.string()));
    }
    throw system_error(Cause::refused, fmt::format("{}: can't be made", partial_.string()), errno);
  }
  lock_ = lock(partial_);
}

PartialFolder::~PartialFolder() {
  std::error_code ignored;
  if (!published_) fs::remove_all(partial_, ignored);
}

void PartialFolder::publish() {
  file::sync_folder(partial_);
  int failure = ::rename(partial_.c_str(), final_.c_str()) == 0 ? 0 : errno;
  const bool replaces = failure == ENOTEMPTY || failure == EEXIST;
  if (replaces) {
    failure = ::renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, final_.c_str(), RENAME_EXCHANGE) == 0 ? 0 : errno;
  }
  if (replaces && (failure == EINVAL || failure == ENOSYS)) {
    // This file system can't exchange two folders' names atomically: the old folder is renamed away first.
    const fs::path old = dir_ / fmt::format("{}{}{}", final_.filename().string(), kReplaced, kPartial);
    failure = ::rename(final_.c_str(), old.c_str()) == 0 ? 0 : errno;
    if (failure == 0 && ::rename(partial_.c_str(), final_.c_str()) != 0) {
      failure = errno;
      ::rename(old.c_str(), final_.c_str());
    }
  }
  if (failure != 0) {
    throw system_error(Cause::refused, fmt::format("{}: can't be renamed to {}", partial_.string(), final_.string()), failure);
  }
  published_ = true;
  file::sync_folder(dir_);
  if (replaces) {
    lock_.reset();
    remove_leftovers(dir_);
  }
}

}  // namespace tsprun::detail
