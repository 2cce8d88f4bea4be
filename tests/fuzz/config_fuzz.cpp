// Any bytes as a config.json: refused with an Error, or a configuration that holds together and survives being written and read
// again.
#include "layers/io/config.h"
#include "layers/parameters/parameters.h"
#include "transport/cause.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tsprun::detail::LoadedConfig loaded;
  try {
    loaded = tsprun::detail::parse_config({reinterpret_cast<const char*>(data), size}, "config.json");
  } catch (const tsprun::Error&) {
    return 0;
  }
  const tsprun::detail::LoadedConfig again =
      tsprun::detail::parse_config(tsprun::detail::hugging_face_json(loaded.config, "float32"), "again");
  if (!again.config.same_model(loaded.config)) std::abort();
  if (loaded.config.layers < 100 && tsprun::detail::model_parameters(loaded.config).size() < 6 * loaded.config.layers)
    std::abort();
  return 0;
}
