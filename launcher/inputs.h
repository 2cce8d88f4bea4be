// Inputs of a job besides its options: the program itself, the machine's kernels, and the bytes of all files that ranks will
// read. They must be the same on all nodes, or the job would compute a mixture.
#pragma once

#include "core/kernels/level.h"
#include "launcher/agreement.h"

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// A file that ranks will read.
struct InputFile {
  std::string option;          ///< option that names the file or its folder: "--data"
  std::filesystem::path path;  ///< path on this machine; other nodes may keep the file elsewhere
  std::string name = {};       ///< nodes compare a folder's files by name; empty: they compare the option's files in order
};

/// Kernels and files that a command's ranks use.
struct Inputs {
  bool kernels = false;          ///< ranks compute with kernels, so their level determines the results' bits
  std::vector<InputFile> files;  ///< files whose bytes must be the same on all nodes
};

/// Returns facts that nodes must agree on. "build": version and digest of this program. For ranks that compute
/// with kernels, "kernels": their `level`, and "gemm": what multiplies their matrices (try_gemm_library()). Throws
/// Error(refused) if the program's file can't be read, or if that library doesn't work.
Agreement machine_facts(std::optional<kernels::Level> level);

/// Returns the digest of every file, by option: "--data" or "--model's config.json". All usable cores read, in blocks of 16 MiB,
/// while this thread calls `tick` every 50 ms. An exception from `tick` ends the reading and is passed on. Throws Error(refused)
/// naming a file that can't be read.
Agreement contents(const std::vector<InputFile>& files, const std::function<void()>& tick);

}  // namespace tsprun::detail::launcher
