// Checksums against damage: XXH3-128, written as 32 hexadecimal digits. A file is cut into blocks of 16 MiB, so that ranks can
// share the reading. The checksum of a file of one block is the block's own (as `xxhsum -H2` prints it); that of a longer file is
// the checksum of its blocks' checksums, 16 bytes each, one after another.
#pragma once

#include "transport/hexadecimal.h"
#include "transport/posix.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

namespace tsprun::detail {

/// Bytes of a block; the last block of a file may be shorter.
inline constexpr std::uint64_t kDigestBlockBytes = std::uint64_t{16} << 20;

/// A checksum in xxHash's canonical byte order, the same on every machine.
using Digest = std::array<std::byte, 16>;

/// Returns the checksum of some bytes.
Digest digest(std::span<const std::byte> bytes);
/// Returns whether the text is 32 hexadecimal digits in lower case.
bool is_hexadecimal_digest(std::string_view text);

/// Returns the number of blocks of a file: at least one, since an empty file is one empty block.
std::uint64_t digest_blocks(std::uint64_t file_bytes);
/// Returns the checksum of block `block` of an open file. Calls `tick` after every MiB. Throws Error(refused).
Digest digest_block(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t file_bytes, std::uint64_t block,
                    const std::function<void()>& tick);
/// Returns the checksum of a file from those of its blocks.
Digest digest_of_blocks(std::span<const Digest> blocks);
/// Returns the checksum of a file, reading all of it. Throws Error(refused).
Digest digest_file(const posix::UniqueFd& file, const std::filesystem::path& path, std::uint64_t file_bytes);

}  // namespace tsprun::detail
