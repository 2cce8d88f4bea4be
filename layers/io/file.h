// Reads and writes of byte ranges at given offsets of files, with errors that name the file.
#pragma once

#include "transport/posix.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tsprun::detail::file {

/// Returns whether a file or folder is there, which can be seen.
bool exists(const std::filesystem::path& path);
/// Opens a regular file for reading. Throws Error(refused): missing, not a regular file, not readable.
posix::UniqueFd open_to_read(const std::filesystem::path& path);
/// Returns the file's size in bytes. Throws Error(refused).
std::uint64_t size(const posix::UniqueFd& file, const std::filesystem::path& path);
/// Reads bytes from `offset` on until `into` is full. Throws Error(refused) if the file ends before that, or can't be read.
void read(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t offset, std::span<std::byte> into);
/// Returns a small file's contents. `what`: what it should be, for the refusal of one of more than `most` bytes, such as "a
/// config.json". Throws Error(refused).
std::string read_text(const std::filesystem::path& path, std::uint64_t most, std::string_view what);
/// Writes all of `from` at `offset`. Throws Error(refused) with the cause (a full disk, say).
void write(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t offset, std::span<const std::byte> from);
/// Opens a file without a name in a folder, which is gone with the last process that has it open; empty if the folder, or its
/// file system, takes none.
posix::UniqueFd open_unnamed(const std::filesystem::path& folder);
/// Syncs the file's contents to disk, so that they survive a power cut. Throws Error(refused).
void sync(const posix::UniqueFd& file, const std::filesystem::path& path);
/// Syncs the names in a folder (created, renamed) to disk, so that they survive a power cut. Throws Error(refused).
void sync_folder(const std::filesystem::path& folder);

}  // namespace tsprun::detail::file
