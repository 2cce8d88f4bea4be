// A safetensors file that all ranks of a job write together, such as logits or a block's results. It has no name until it is
// complete, so that nothing is left of it if the job is killed; or it is called `path` + ".partial", where ranks of other
// machines must find it, or the file system has no files without names.
#pragma once

#include "launcher/model/session.h"
#include "layers/io/safetensors_writer.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Handle of one rank on the shared file.
class OutputFile {
 public:
  /// Creates the file at its full size, filled with zeros. `unnamed`: the descriptor of unnamed_output() that this rank has
  /// inherited; -1: there is none. Collective. Throws Error(refused), also if the disk is full.
  OutputFile(Session& session, const std::string& path, const std::vector<safetensors::PlannedTensor>& tensors, int unnamed);

  /// Returns the writer for this rank's parts of the tensors.
  safetensors::Writer& writer() { return *writer_; }
  /// Gives the file its name, once all ranks have written their parts. Collective.
  void publish();

 private:
  Session& session_;
  safetensors::Plan plan_;
  std::optional<safetensors::Writer> writer_;
};

/// Opens the file for the ranks of this tsprun to inherit (JobSpec::inherited); empty: they share it by its name.
posix::UniqueFd unnamed_output(const GlobalOptions& global, const std::string& path);

/// Checks an output file before ranks start, and returns the path to write, with symbolic links followed. Removes what an earlier
/// job may have left in that path + ".partial". Throws Error(refused) if another run writes that, and unless the file's folder
/// exists, can be written and has room for `bytes`. Also throws if the file would replace something that isn't a regular file (a
/// device, say), or a file that the command reads. `sources`: those files, or folders of them.
std::string check_output(const std::string& option, const std::string& path, double bytes,
                         std::span<const std::filesystem::path> sources);

}  // namespace tsprun::detail::launcher
