// Imagined addresses, and address space from mmap(2) with MAP_NORESERVE.
#include "core/memory/address_space.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdint>
#include <utility>

namespace tsprun::detail {

AddressSpace imagine_address_space(std::size_t bytes) {
  // Linux gives no process addresses of more than 52 bits on aarch64 and, unless it asks for them, of more than 47 on x86-64.
  // aarch64 ignores the uppermost 8 bits.
  constexpr std::uintptr_t kBeyond = std::uintptr_t{1} << 54;
  return {.mapping = {}, .bytes = {reinterpret_cast<std::byte*>(kBeyond), bytes}};
}

AddressSpace reserve_address_space(std::size_t bytes) {
  constexpr std::size_t kLeast = std::size_t{1} << 30;
  for (; bytes >= kLeast; bytes /= 2) {
    posix::Mapping space(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, PROT_READ | PROT_WRITE);
    if (!space) continue;
    const std::span<std::byte> all = space.bytes();
    return {.mapping = std::move(space), .bytes = all};
  }
  throw system_error(Cause::out_of_memory,
                     fmt::format("reserving {} bytes of address space (is `ulimit -v` or `ulimit -d` set?)", kLeast), errno);
}

}  // namespace tsprun::detail
