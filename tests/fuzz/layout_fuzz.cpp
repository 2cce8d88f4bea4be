// Any bytes as a --layout: refused with an Error, or axes whose print is read as the same layout.
#include "launcher/layout.h"
#include "transport/cause.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tsprun::launcher::Layout layout;
  try {
    layout = tsprun::launcher::parse_layout(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const tsprun::Error&) {
    return 0;
  }
  const tsprun::launcher::Layout again = tsprun::launcher::parse_layout(layout.print());
  if (again.product() != layout.product() || again.print() != layout.print() || layout.product() < 1) std::abort();
  return 0;
}
