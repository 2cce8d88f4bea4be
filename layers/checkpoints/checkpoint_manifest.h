// manifest.json of a checkpoint: facts about the run, and size and checksum of every other file. A save writes it last. Its last
// field is a checksum of its other fields, so damage to the manifest itself is detected.
#pragma once

#include "layers/checkpoints/checkpoint.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun::detail {

/// Version that is written. Version 1, which can be read too, has no field "run".
inline constexpr std::uint64_t kManifestVersion = 2;
/// Value of the field "format".
inline constexpr std::string_view kCheckpointFormat = "tsprun checkpoint";
inline constexpr std::string_view kManifestName = "manifest.json";
/// Largest manifest that is read, in bytes.
inline constexpr std::uint64_t kManifestBytes = std::uint64_t{1} << 20;

/// One file of a checkpoint, as its manifest describes it.
struct CheckpointFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string checksum;  ///< see digest.h; 32 hexadecimal digits
  bool operator==(const CheckpointFile&) const = default;
};

/// Returns the names of the files that every checkpoint has except the manifest, in the manifest's order.
std::vector<std::string> checkpoint_files(DType dtype);

/// Contents of a manifest.
struct Manifest {
  CheckpointState state;
  std::vector<CheckpointFile> files;  ///< those of checkpoint_files(state.dtype), then those that are carried along
  std::string checksum;               ///< XXH3-128 of the text of the other fields
};

/// Returns the text of the file. Ignores `checksum` and computes it.
std::string manifest_json(const Manifest& manifest);

/// Treatment of the manifest's own checksum. Only tests that need to get past it ignore it.
enum class Seal : std::uint8_t { checked, ignored };

/// Parses the text of the file. Throws Error(refused) with a message that begins with `where` and names the field and what was
/// expected.
Manifest parse_manifest(std::string_view text, const std::string& where, Seal seal = Seal::checked);

/// Reads the manifest of a checkpoint folder. Throws Error(refused).
Manifest read_manifest(const std::filesystem::path& folder);
/// Returns the identity of the run that saved a checkpoint, from its manifest; nothing if that can't be read. Reads no other
/// file.
std::optional<std::string> run_of(const std::filesystem::path& folder);

}  // namespace tsprun::detail
