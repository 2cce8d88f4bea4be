// Address space from mmap(2) with MAP_NORESERVE.
#include "core/memory/address_space.h"

#include "transport/cause.h"

#include <fmt/format.h>

#include <cerrno>
#include <sys/mman.h>
#include <utility>

namespace tsprun::detail {

AddressSpace::AddressSpace(std::size_t bytes) : AddressSpace(bytes, PROT_READ | PROT_WRITE) {}

AddressSpace AddressSpace::unreadable(std::size_t bytes) { return {bytes, PROT_NONE}; }

AddressSpace::AddressSpace(std::size_t bytes, int protection) {
  constexpr std::size_t kLeast = std::size_t{1} << 30;
  for (; bytes >= kLeast; bytes /= 2) {
    void* const begin = ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) continue;
    bytes_ = {static_cast<std::byte*>(begin), bytes};
    return;
  }
  throw system_error(Cause::out_of_memory, fmt::format("reserving {} bytes of address space (is `ulimit -v` set?)", kLeast),
                     errno);
}

AddressSpace::AddressSpace(AddressSpace&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

AddressSpace::~AddressSpace() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace tsprun::detail
