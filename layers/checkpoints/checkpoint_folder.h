// Checkpoint folders by name: finding, naming and deleting them. DIR contains
//
//   step-000120            a whole checkpoint
//   step-000120.partial    one that is being written, or deleted; its writer holds a lock on it, which ends with its process
//   step-000120.replaced.partial   one whose successor of the same name is being put in its place
#pragma once

#include "transport/posix.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Returns the name of a step's folder, "step-000120".
std::string step_folder(std::uint64_t step);
/// Returns the step that a folder's name says, or nothing if it isn't the name of a checkpoint.
std::optional<std::uint64_t> step_of(std::string_view name);

/// Creates a folder and its parents as far as they are missing, and syncs their names so that they survive a power cut. Throws
/// Error(refused).
void make_folders(const std::filesystem::path& dir);

/// Returns the steps of the checkpoints in a folder, newest first. Throws Error(refused) if it can't be read.
std::vector<std::uint64_t> steps_in(const std::filesystem::path& dir);

/// Returns checkpoints whose replacement was interrupted where names can't be exchanged: step-N.replaced.partial without a
/// step-N. remove_leftovers() gives them their names back. Throws Error(refused) if the folder can't be read.
std::vector<std::filesystem::path> interrupted_in(const std::filesystem::path& dir);

/// Deletes every *.partial folder of a checkpoint that no process is writing; gives a replaced one whose successor never came its
/// name back. Throws Error(refused) if one can't be deleted or renamed.
void remove_leftovers(const std::filesystem::path& dir);

/// Deletes a checkpoint: renames it to *.partial first, so that a half-deleted one never has a checkpoint's name. Throws
/// Error(refused).
void remove_checkpoint(const std::filesystem::path& dir, std::uint64_t step);

/// A folder that is being written; the destructor deletes it unless it was published.
class PartialFolder {
 public:
  /// Creates `dir` if it is missing, deletes leftovers in it, and creates step-NNNNNN.partial, locked. Throws Error(refused),
  /// also if another process is writing the same step.
  PartialFolder(const std::filesystem::path& dir, std::uint64_t step);
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder();

  const std::filesystem::path& path() const { return partial_; }
  /// Syncs the folder and renames it to step-NNNNNN, replacing a checkpoint of that step if there is one. Throws Error(refused).
  void publish();

 private:
  std::filesystem::path dir_;
  std::filesystem::path partial_;
  std::filesystem::path final_;
  posix::UniqueFd lock_;
  bool published_ = false;
};

}  // namespace tsprun::detail
