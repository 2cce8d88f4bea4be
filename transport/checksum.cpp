#include "transport/checksum.h"

#include <xxhash.h>
#if defined(XXH_DISPATCHES)
#include <xxh_x86dispatch.h>  // redefines XXH3_64bits
#endif

namespace tsp {

std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace tsp
