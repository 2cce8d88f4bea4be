// Any bytes as the address that a rank left in the store: refused, or an address that is the same when it is written again.
#include "transport/tcp/address.h"
#include "transport/verbs/wire.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  if (const auto address = tsprun::detail::verbs::Address::decode(bytes)) {
    const auto again = tsprun::detail::verbs::Address::decode(address->encode());
    if (!again || again->port != address->port || again->why_not != address->why_not || again->doors_key != address->doors_key)
      std::abort();
  }
  if (size == sizeof(tsprun::detail::tcp::AddressBlob)) {
    tsprun::detail::tcp::AddressBlob blob;
    std::memcpy(&blob, data, sizeof blob);
    const tsprun::detail::tcp::SocketAddress where = tsprun::detail::tcp::unpack(blob);
    if (where.length != 0) {
      const tsprun::detail::tcp::SocketAddress again = tsprun::detail::tcp::unpack(tsprun::detail::tcp::pack(where, blob.rank));
      if (again.print() != where.print()) std::abort();
    }
  }
  return 0;
}
