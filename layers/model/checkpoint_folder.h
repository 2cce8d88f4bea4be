// Checkpoint folders as names: finding them, giving them their names, taking them away. In DIR lie
//
//   step-000120            a checkpoint, whole
//   step-000120.partial    one that is being written, or deleted; the writer holds a lock on it, which ends with its process
#pragma once

#include "transport/posix.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun {

/// "step-000120"
std::string step_folder(std::uint64_t step);
/// The step of a folder's name; nothing if it is no checkpoint's.
std::optional<std::uint64_t> step_of(std::string_view name);

/// Makes a folder and those that it lies in, so that their names survive a power cut. Throws Error(refused).
void make_folders(const std::filesystem::path& dir);

/// The steps of the checkpoints in a folder, newest first. Throws Error(refused) if it can't be read.
std::vector<std::uint64_t> steps_in(const std::filesystem::path& dir);

/// Deletes every *.partial of a checkpoint that no process writes. Throws Error(refused) if one can't be deleted.
void remove_leftovers(const std::filesystem::path& dir);

/// Deletes a checkpoint so that at no moment half of it bears its name. Throws Error(refused).
void remove_checkpoint(const std::filesystem::path& dir, std::uint64_t step);

/// A folder that is being written; it goes away unless it is published.
class PartialFolder {
 public:
  /// Makes `dir`, and step-NNNNNN.partial in it, locked. Throws Error(refused), if another process writes it, too.
  PartialFolder(const std::filesystem::path& dir, std::uint64_t step);
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder();

  const std::filesystem::path& path() const { return partial_; }
  /// Syncs the folder and gives it its name, in the place of a checkpoint of that step, if there is one. Throws Error(refused).
  void publish();

 private:
  std::filesystem::path dir_;
  std::filesystem::path partial_;
  std::filesystem::path final_;
  posix::UniqueFd lock_;
  bool published_ = false;
};

}  // namespace tsprun
