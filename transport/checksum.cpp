// Only user of xxHash with run-time dispatch (xxhash.h).
#include "transport/checksum.h"

#include "transport/xxhash.h"

namespace tsprun::detail {

std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace tsprun::detail
