// The checksum of what travels: XXH3 of 64 bits, against damage, not against strangers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tsprun {

/// XXH3 of the bytes, by the widest vectors that this processor has: seen, 39 GB/s of cold memory, where xxHash as it is compiled
/// for any x86-64 has 15. The value doesn't depend on the vectors.
std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace tsprun
