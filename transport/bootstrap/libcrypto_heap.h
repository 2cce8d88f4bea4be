// Memory for libcrypto and libssl that core dumps leave out: keys of connections, what they are computed from, and buffers of
// plain text. It is a heap of this process alone, since libcrypto's own "secure heap" holds only the private keys of
// certificates.
#pragma once

namespace tsprun::detail::bootstrap {

/// Makes libcrypto, and with it libssl, take all memory from pages that core dumps leave out, in this process and its forked
/// children. Only a program's main() may decide that, before anything else uses libcrypto. Returns false if libcrypto has
/// allocated already; it then keeps the heap that it has.
[[nodiscard]] bool hide_heap_of_libcrypto();

}  // namespace tsprun::detail::bootstrap
