// Any bytes as a --fault: refused with an Error and a text that works, or a fault that means the same when it is read again.
#include "transport/cause.h"
#include "transport/fault/grammar.h"
#include "transport/fault/spec.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  constexpr int kRanks = 3;
  tsprun::detail::fault::Spec spec;
  try {
    spec = tsprun::detail::fault::parse(text, kRanks);
  } catch (const tsprun::Error&) {
    spec = tsprun::detail::fault::parse(tsprun::detail::fault::repaired(text, kRanks), kRanks);
  }
  const tsprun::detail::fault::Spec again = tsprun::detail::fault::parse(spec.text);
  if (again.kind != spec.kind || again.rank != spec.rank || again.from != spec.from || again.to != spec.to) std::abort();
  if (spec.strikes_rank() ? spec.rank < 0 : spec.from < 0 || spec.to < 0) std::abort();
  return 0;
}
