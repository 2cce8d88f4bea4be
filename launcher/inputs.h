// What a job computes with and from, beside its options: the program itself, the machine's kernels, OpenBLAS, and the bytes of
// all files that ranks will read. Nodes that differ in any of it would compute a mixture that nobody asked for.
#pragma once

#include "launcher/agreement.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tsprun::launcher {

/// A file that ranks will read.
struct InputFile {
  std::string option;          ///< that names it, or the folder it lies in: "--data"
  std::filesystem::path path;  ///< on this machine; other nodes may keep it elsewhere
  std::string name = {};  ///< of a folder's file, which nodes compare by name; empty: the option's files count in their order
};

/// What a command's ranks compute with and from.
struct Inputs {
  bool kernels = false;          ///< they multiply matrices: the level of kernels and OpenBLAS decide on bits
  std::vector<InputFile> files;  ///< whose bytes all nodes must have in common
};

/// "build": version and digest of this program. With `kernels` also the level of kernels (TSP_KERNELS, else the machine's best)
/// and OpenBLAS' version and core, which a child of this process finds out, so that this one stays free of the library. Throws
/// Error(refused) if OpenBLAS can't be loaded.
Agreement machine_facts(bool kernels);

/// The digest of every file, by option: "--data" or "--model's config.json". All usable cores read, blocks of 16 MiB each, while
/// this thread calls `tick` every 50 ms: what that throws ends the reading and is passed on. Throws Error(refused) naming a file
/// that can't be read.
Agreement contents(const std::vector<InputFile>& files, const std::function<void()>& tick);

}  // namespace tsprun::launcher
