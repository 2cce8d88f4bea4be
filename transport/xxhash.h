// xxHash, with the widest vectors that the processor has where Debian's package brings that choice. For source files alone: users
// of an installed header needn't have xxHash.
#pragma once

#include <xxhash.h>
#if defined(XXH_DISPATCHES)   // by cmake/FindxxHash.cmake
#include <xxh_x86dispatch.h>  // redefines XXH3_…
#endif
