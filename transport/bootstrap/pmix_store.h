// The key-value store of a process manager that speaks PMIx (https://pmix.github.io): Open MPI's mpirun, and Slurm by
// `srun --mpi=pmix`. Its library, libpmix, is loaded when the first store is made.
#pragma once

#include "tsprun/key_value.h"

#include <cstdint>
#include <string>

namespace tsprun::detail::bootstrap {

/// Returns why libpmix can't be loaded; empty: it is.
std::string pmix_trouble();

/// A process's view of its job's store. A wait for other processes ends at the timeout, with Error(stalled); the manager ends the
/// job if one of them dies.
class PmixStore : public KeyValue {
 public:
  /// Connects to the manager, which PMIX_* variables name. Throws Error(refused) if libpmix isn't installed or doesn't reach it,
  /// Error(stalled) if it doesn't answer until the timeout.
  explicit PmixStore(std::uint64_t timeout_ns);
  /// Says goodbye, without which the manager would take the process's end for a failure.
  ~PmixStore() override;

  void set(const std::string& key, std::span<const std::byte> value) override;
  /// Returns what was set before the last fence(); looks once.
  std::optional<std::vector<std::byte>> get(const std::string& key, std::chrono::milliseconds at_most) override;
  void fence() override;

 private:
  std::string job_;  ///< PMIx's namespace
  std::uint64_t timeout_ns_;
};

}  // namespace tsprun::detail::bootstrap
