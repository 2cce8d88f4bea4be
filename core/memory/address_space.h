// Reserved address space that takes no memory until it is touched. A phantom rank places its tensors there: they need addresses,
// but kernels don't write them.
#pragma once

#include "transport/posix.h"

#include <cstddef>

namespace tsprun::detail {

/// Maps `bytes` of private address space without reserved memory (mmap with MAP_NORESERVE), or half as much, a quarter, …,
/// whatever the system grants first. With PROT_NONE nobody may touch it: reading or writing it ends the process with SIGSEGV.
/// Throws Error(out_of_memory) if the system doesn't grant at least 1 GiB.
posix::Mapping reserve_address_space(std::size_t bytes, int protection = PROT_READ | PROT_WRITE);

}  // namespace tsprun::detail
