// The key-value store of a process manager that speaks PMI-1 on an inherited socket: MPICH's hydra (mpirun.mpich), and Slurm by
// `srun
// --mpi=pmi2`, which takes both versions. Lines of words:
//
//   cmd=init pmi_version=1 pmi_subversion=1                 cmd=response_to_init … rc=0
//   cmd=get_my_kvsname                                      cmd=my_kvsname kvsname=NAME
//   cmd=put kvsname=NAME key=KEY value=VALUE                cmd=put_result rc=0 …
//   cmd=barrier_in                                          cmd=barrier_out, when all have come
//   cmd=get kvsname=NAME key=KEY                            cmd=get_result rc=0 … value=VALUE
//   cmd=finalize                                            cmd=finalize_ack
#pragma once

#include "transport/posix.h"
#include "tsprun/key_value.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace tsprun::detail::bootstrap {

/// A process's view of its job's store. Values travel as hexadecimal digits. A wait for other processes ends at the timeout, with
/// Error(stalled); the manager ends the job if one of them dies.
class PmiStore : public KeyValue {
 public:
  /// Begins the conversation on the socket that the manager handed down (PMI_FD). The descriptor stays open in this process, but
  /// is closed in programs that it starts. Throws Error(refused) if nobody there speaks PMI-1.
  PmiStore(int descriptor, std::uint64_t timeout_ns);
  /// Says goodbye, without which the manager would take the process's end for a failure.
  ~PmiStore() override;

  /// Throws Error(refused) if the value is longer than the manager takes.
  void set(const std::string& key, std::span<const std::byte> value) override;
  /// Returns what was set before the last fence(); looks once.
  std::optional<std::vector<std::byte>> get(const std::string& key, std::chrono::milliseconds at_most) override;
  void fence() override;

 private:
  std::string ask(const std::string& line, std::string_view answer);
  [[noreturn]] void throw_silent() const;
  std::string read_line();
  std::string quoted(const std::string& key) const;

  int descriptor_;
  std::uint64_t timeout_ns_;
  std::string name_;
  std::size_t most_bytes_ = 0;
  std::string input_;
};

}  // namespace tsprun::detail::bootstrap
