// Checksums of whole files (digest.h), by all the cores that this process may use.
#pragma once

#include "layers/io/digest.h"

#include <filesystem>
#include <functional>
#include <vector>

namespace tsprun::detail {

/// Returns the checksum of every file, in their order. Up to 16 threads read blocks of 16 MiB, while this thread calls `tick`
/// every 50 ms. An exception from `tick` ends the reading and is passed on. Throws Error(refused) naming a file that can't be
/// read.
std::vector<Digest> digest_files(const std::vector<std::filesystem::path>& paths, const std::function<void()>& tick);

}  // namespace tsprun::detail
