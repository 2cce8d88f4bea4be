// Any bytes as a checkpoint's manifest.json: refused with an Error, or facts that hold together, name no file outside the folder,
// and survive being written and read again. A checksum stops nearly everything that a fuzzer makes, so it is left out first.
#include "layers/checkpoints/checkpoint_manifest.h"
#include "transport/cause.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  tsprun::detail::Manifest manifest;
  bool sealed = true;
  try {
    (void)tsprun::detail::parse_manifest(text, "manifest.json");
  } catch (const tsprun::Error&) {
    sealed = false;
  }
  try {
    manifest = tsprun::detail::parse_manifest(text, "manifest.json", tsprun::detail::Seal::ignored);
  } catch (const tsprun::Error&) {
    if (sealed) std::abort();
    return 0;
  }
  const tsprun::detail::Manifest again = tsprun::detail::parse_manifest(tsprun::detail::manifest_json(manifest), "again");
  if (again.state != manifest.state || again.files != manifest.files) std::abort();
  if (manifest.files.size() < tsprun::detail::checkpoint_files(manifest.state.dtype).size()) std::abort();
  for (const tsprun::detail::CheckpointFile& file : manifest.files) {
    if (std::filesystem::path(file.name).filename() != file.name) std::abort();
  }
  return 0;
}
