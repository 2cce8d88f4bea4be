// The folder into which a training run saves: the run's identity, the lease that keeps other runs from saving there at the same
// time, the checkpoint from which the run goes on after a failure, and what is left in the end.
#pragma once

#include "launcher/options.h"
#include "layers/checkpoints/checkpoint.h"
#include "layers/checkpoints/checkpoint_lease.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Folder of one training run.
class RunFolder {
 public:
  /// Looks at what is in `dir` before the run. `resumed`: the checkpoint from which the run goes on, if any. A run that goes on
  /// in the folder of its checkpoint keeps its identity; any other run gets a new one. Throws Error(refused).
  RunFolder(std::filesystem::path dir, const std::optional<FoundCheckpoint>& resumed);

  /// Returns the folder.
  const std::filesystem::path& dir() const { return dir_; }
  /// Returns the run's identity, for manifests. With several machines that of node 0 counts.
  const std::string& run() const { return run_; }
  /// Returns the newest step of other runs' checkpoints in the folder; empty: there are none.
  std::optional<std::uint64_t> others() const;
  /// Deletes the other runs' checkpoints that were there before this run, and whose steps it hasn't replaced. Throws
  /// Error(refused).
  void remove_others() const;

  /// Takes the lease and removes what interrupted saves left; only on the machine of rank 0, a no-op elsewhere. If only time can
  /// tell whether the last holder is dead, it says so and waits. Throws Error(refused) if another run holds the lease, or has
  /// saved there since the constructor looked.
  void lease(const GlobalOptions& global);
  /// Returns the lease's token, for check_lease(); empty: this process doesn't hold the lease.
  std::string token() const { return lease_ ? lease_->token() : std::string(); }

  /// Finds the newest undamaged checkpoint that this run has saved since it began, and reads all of it to be sure. Throws
  /// Error(refused), also if the lease was lost.
  CheckpointSearch own_checkpoints() const;
  /// Finds the same checkpoint by its manifest and its files' sizes alone, which is quick. Empty: there is none, or it can't be
  /// read.
  std::optional<FoundCheckpoint> survivor() const;

 private:
  CheckpointSearch search(bool verify_bytes) const;

  std::filesystem::path dir_;
  CheckpointMarks before_;
  bool goes_on_here_ = false;
  std::string run_;
  std::optional<CheckpointLease> lease_;
};

/// Returns the command, quoted for a shell, that continues a training: `words` as typed, without --model, its --no-checksum and
/// --resume, which the checkpoint replaces, and without --overwrite; with --resume `dir`.
std::string resume_command(const std::vector<std::string>& words, const std::string& dir);

}  // namespace tsprun::detail::launcher
