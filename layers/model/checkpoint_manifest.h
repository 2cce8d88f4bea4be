// manifest.json of a checkpoint: the run's facts, and size and checksum of every other file. It is the last file that a save
// writes, and says of itself that it is undamaged: its own checksum is the last field.
#pragma once

#include "layers/model/checkpoint.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tsprun {

/// What is written. Version 1, which is read as well, has no "run".
inline constexpr std::uint64_t kManifestVersion = 2;
/// Its field "format".
inline constexpr std::string_view kCheckpointFormat = "tsprun checkpoint";
inline constexpr std::string_view kManifestName = "manifest.json";
/// The largest that is read.
inline constexpr std::uint64_t kManifestBytes = std::uint64_t{1} << 20;

struct CheckpointFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string checksum;  ///< see digest.h; 32 hexadecimal digits
  bool operator==(const CheckpointFile&) const = default;
};

/// The names of a checkpoint's files, but the manifest, in the order of the manifest.
std::vector<std::string> checkpoint_files(DType dtype);

struct Manifest {
  CheckpointState state;
  std::vector<CheckpointFile> files;  ///< exactly those of checkpoint_files(state.dtype)
  std::string checksum;               ///< XXH3-128 of what the other fields say
};

/// The file's text; `checksum` needn't be set.
std::string manifest_json(const Manifest& manifest);

/// Whether the manifest's own checksum must be right. Only tests that must get past it leave it out.
enum class Seal : std::uint8_t { checked, ignored };

/// Reads the file's text. Throws Error(refused) that begins with `where`: field, what was expected.
Manifest parse_manifest(std::string_view text, const std::string& where, Seal seal = Seal::checked);

/// The manifest of a checkpoint folder. Throws Error(refused).
Manifest read_manifest(const std::filesystem::path& folder);
/// Whose checkpoint a folder is: its manifest's `run`, of which it reads no more; nothing if that can't be read.
std::optional<std::string> run_of(const std::filesystem::path& folder);

}  // namespace tsprun
