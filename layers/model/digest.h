// Checksums against damage: XXH3-128, written as 32 hexadecimal digits. A file is cut into blocks of 16 MiB, so that ranks can
// read it in turns: the checksum of a file of one block is that block's (what `xxhsum -H2` prints); of a longer file, that of its
// blocks' checksums, 16 bytes each, one after another.
#pragma once

#include "transport/posix.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

namespace tsprun {

inline constexpr std::uint64_t kDigestBlockBytes = std::uint64_t{16} << 20;

/// In xxHash's canonical order, the same on every machine.
using Digest = std::array<std::byte, 16>;

Digest digest(std::span<const std::byte> bytes);
std::string hexadecimal(const Digest& digest);
/// 32 digits, lower case.
bool is_hexadecimal_digest(std::string_view text);

/// At least one: an empty file is one empty block.
std::uint64_t digest_blocks(std::uint64_t file_bytes);
/// Of block `block` of an open file. `tick` is called every MiB. Throws Error(refused).
Digest digest_block(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t file_bytes, std::uint64_t block,
                    const std::function<void()>& tick);
/// Of a file, from its blocks'.
Digest digest_of_blocks(std::span<const Digest> blocks);
/// All of a file. Throws Error(refused).
Digest digest_file(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t file_bytes);

}  // namespace tsprun
