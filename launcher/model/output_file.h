// A safetensors file that all ranks of a job write together: logits, a block's results. It gets its name when it is whole; until
// then it is `path` + ".partial".
#pragma once

#include "launcher/model/session.h"
#include "layers/model/safetensors_writer.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tsprun::launcher {

class OutputFile {
 public:
  /// Collective. The file exists at its full size, filled with zeros, when it returns. Throws Error(refused), a full disk
  /// included.
  OutputFile(Session& session, const std::string& path, const std::vector<safetensors::PlannedTensor>& tensors);

  safetensors::Writer& writer() { return *writer_; }
  /// Collective. Gives the file its name.
  void publish();

 private:
  Session& session_;
  safetensors::Plan plan_;
  std::optional<safetensors::Writer> writer_;
};

/// Before ranks start: the path to write, symbolic links followed. Throws Error(refused) unless the file's folder is there, can
/// be written and has room for `bytes`; and if the file would replace what is no regular file (a device, say), or one of those
/// that the command reads: `sources`, files or folders of files.
std::string check_output(const std::string& option, const std::string& path, double bytes,
                         std::span<const std::filesystem::path> sources);
/// After a job that failed: ranks that were killed couldn't take the unfinished file away.
void discard_output(const std::string& path);

}  // namespace tsprun::launcher
