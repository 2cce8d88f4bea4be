// Any bytes as a --fault: refused with an Error, or a fault that means the same when it is read again.
#include "transport/cause.h"
#include "transport/fault/spec.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tsp::fault::Spec spec;
  try {
    spec = tsp::fault::parse({reinterpret_cast<const char*>(data), size});
  } catch (const tsp::Error&) {
    return 0;
  }
  const tsp::fault::Spec again = tsp::fault::parse(spec.text);
  if (again.kind != spec.kind || again.rank != spec.rank || again.from != spec.from || again.to != spec.to) std::abort();
  if (spec.strikes_rank() ? spec.rank < 0 : spec.from < 0 || spec.to < 0) std::abort();
  return 0;
}
