// Any bytes as a machine's description: refused with an Error, or numbers that a model of time can be made of.
#include "layers/theory/machine.h"
#include "layers/theory/search.h"
#include "transport/cause.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tsprun::detail::theory::Machine machine;
  try {
    machine = tsprun::detail::theory::parse_machine({reinterpret_cast<const char*>(data), size}, "machine.json");
  } catch (const tsprun::Error&) {
    return 0;
  }
  tsprun::detail::Setting setting;
  setting.model = tsprun::detail::built_in_configs().front();
  setting.batch = 2;
  setting.sequence = 64;
  if (!machine.flops(tsprun::DType::f32)) return 0;
  for (const tsprun::detail::Layout& layout : tsprun::detail::theory::all_layouts(4)) {
    const tsprun::detail::theory::Candidate found =
        tsprun::detail::theory::judge(setting, layout, machine, {.memory_bytes = 1 << 20, .dtype = tsprun::DType::f32});
    if (found.possible && !(found.time.seconds >= 0 && found.time.exposed <= found.time.seconds)) std::abort();
  }
  return 0;
}
