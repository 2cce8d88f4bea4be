// Positional reads and writes of whole ranges, with errors that name the file.
#pragma once

#include "transport/posix.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace tsprun::file {

/// Opens a regular file for reading. Throws Error(refused): missing, a directory, not readable.
posix::UniqueFd open_to_read(const std::filesystem::path& path);
/// Its size in bytes.
std::uint64_t size(const posix::UniqueFd& file, const std::filesystem::path& path);
/// Fills `into` from `offset` on. Throws Error(refused) if the file ends before, or can't be read.
void read(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t offset, std::span<std::byte> into);
/// Writes all of `from` at `offset`. Throws Error(refused) with the cause (a full disk, say).
void write(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t offset, std::span<const std::byte> from);
/// Makes the file's contents survive a power cut.
void sync(const posix::UniqueFd& file, const std::filesystem::path& path);
/// Makes names in a folder (created, renamed) survive a power cut.
void sync_folder(const std::filesystem::path& folder);

}  // namespace tsprun::file
