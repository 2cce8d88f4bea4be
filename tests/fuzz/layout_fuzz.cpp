// Any bytes as a --layout: refused with an Error, or axes whose print is read as the same layout.
#include "layers/layout/layout.h"
#include "transport/cause.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tsprun::detail::Layout layout;
  try {
    layout = tsprun::detail::Layout::parse(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const tsprun::Error&) {
    return 0;
  }
  const tsprun::detail::Layout again = tsprun::detail::Layout::parse(layout.print());
  if (again != layout || layout.ranks() < 1) std::abort();
  return 0;
}
