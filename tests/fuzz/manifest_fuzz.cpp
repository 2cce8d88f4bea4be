// Any bytes as a checkpoint's manifest.json: refused with an Error, or facts that hold together, name no file outside the folder,
// and survive being written and read again. A checksum stops nearly everything that a fuzzer makes, so it is left out first.
#include "layers/model/checkpoint_manifest.h"
#include "transport/cause.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  tsp::Manifest manifest;
  bool sealed = true;
  try {
    (void)tsp::parse_manifest(text, "manifest.json");
  } catch (const tsp::Error&) {
    sealed = false;
  }
  try {
    manifest = tsp::parse_manifest(text, "manifest.json", tsp::Seal::ignored);
  } catch (const tsp::Error&) {
    if (sealed) std::abort();
    return 0;
  }
  const tsp::Manifest again = tsp::parse_manifest(tsp::manifest_json(manifest), "again");
  if (again.state != manifest.state || again.files != manifest.files) std::abort();
  if (manifest.files.size() != tsp::checkpoint_files(manifest.state.dtype).size()) std::abort();
  for (const tsp::CheckpointFile& file : manifest.files) {
    if (std::filesystem::path(file.name).filename() != file.name) std::abort();
  }
  return 0;
}
