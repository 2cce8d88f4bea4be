// The folder into which a training saves: which run it is there, that no other one saves into it meanwhile, where it goes on
// after a failure, and what it leaves.
#pragma once

#include "launcher/options.h"
#include "layers/model/checkpoint.h"
#include "layers/model/checkpoint_lease.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::launcher {

class RunFolder {
 public:
  /// What lies in `dir` before the run; `resumed`: the checkpoint from which it goes on, if any. A run that goes on in the folder
  /// of its checkpoint keeps its identity, any other gets a new one. Throws Error(refused).
  RunFolder(std::filesystem::path dir, const std::optional<FoundCheckpoint>& resumed);

  const std::filesystem::path& dir() const { return dir_; }
  /// The identity, for manifests. Among several machines that of node 0 counts.
  const std::string& run() const { return run_; }
  /// The newest step of other runs' checkpoints in the folder; nothing: there are none.
  std::optional<std::uint64_t> others() const;

  /// Takes the lease, on the machine of rank 0, and removes what interrupted saves left. Waits, and says so, where only time can
  /// tell whether the last holder is dead. Throws Error(refused): another run holds it, or has saved there since the constructor
  /// looked.
  void lease(const GlobalOptions& global);
  /// The lease's token, for check_lease(); empty: another machine holds it.
  std::string token() const { return lease_ ? lease_->token() : std::string(); }

  /// The newest whole checkpoint that this run has saved since it began. Throws Error(refused).
  CheckpointSearch own_checkpoints() const;
  /// The same, by its manifest and its files' sizes alone: what survived, said in a hurry.
  std::optional<FoundCheckpoint> survivor() const;

 private:
  CheckpointSearch search(bool verify_bytes) const;

  std::filesystem::path dir_;
  CheckpointMarks before_;
  bool goes_on_here_ = false;
  std::string run_;
  std::optional<CheckpointLease> lease_;
};

/// The command that goes on with a training: `words` as typed, without what a checkpoint brings (--model, another --resume), and
/// with --resume `dir`. As a shell reads it.
std::string resume_command(const std::vector<std::string>& words, const std::string& dir);

}  // namespace tsprun::launcher
