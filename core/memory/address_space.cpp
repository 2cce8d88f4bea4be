// Address space from mmap(2) with MAP_NORESERVE.
#include "core/memory/address_space.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <cerrno>

namespace tsprun::detail {

posix::Mapping reserve_address_space(std::size_t bytes, int protection) {
  constexpr std::size_t kLeast = std::size_t{1} << 30;
  for (; bytes >= kLeast; bytes /= 2) {
    posix::Mapping space(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, protection);
    if (space) return space;
  }
  throw system_error(Cause::out_of_memory, fmt::format("reserving {} bytes of address space (is `ulimit -v` set?)", kLeast),
                     errno);
}

}  // namespace tsprun::detail
