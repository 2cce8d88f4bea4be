// Address space of ranks that aren't there: their tensors need addresses, and take no memory.
#pragma once

#include "transport/posix.h"

#include <cstddef>
#include <span>

namespace tsprun::detail {

/// A range of addresses, with the mapping that makes them usable; without one nobody may touch them.
struct AddressSpace {
  posix::Mapping mapping = {};
  std::span<std::byte> bytes = {};
};

/// Returns addresses that lie outside of what the system gives to processes, so that they are never taken for those of real
/// memory, and no limit of address space counts them. Whoever reads or writes them ends the process by SIGSEGV.
AddressSpace imagine_address_space(std::size_t bytes);

/// Maps `bytes` of private address space without reserved memory (mmap with MAP_NORESERVE), or half as much, a quarter, …,
/// whatever the system grants first; a page takes memory when it is touched. Throws Error(out_of_memory) if the system doesn't
/// grant at least 1 GiB.
AddressSpace reserve_address_space(std::size_t bytes);

}  // namespace tsprun::detail
