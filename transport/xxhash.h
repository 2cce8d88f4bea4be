// Includes xxHash, with run-time dispatch to the widest vectors of the processor where Debian's package offers it. Include it
// from source files only: users of an installed header needn't have xxHash.
#pragma once

#include <xxhash.h>
#if defined(XXH_DISPATCHES)   // by cmake/FindxxHash.cmake
#include <xxh_x86dispatch.h>  // redefines XXH3_…
#endif
